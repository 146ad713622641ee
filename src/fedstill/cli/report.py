"""``fedstill report``."""

from pathlib import Path
from typing import Annotated

import typer

from fedstill.draw.console import Console
from fedstill.errors import RequestError
from fedstill.runs.place import refuse_unless_runs


def report_command(
    run: Annotated[Path, typer.Argument(help="A run folder, or a folder of runs.")],
    out: Annotated[
        Path | None,
        typer.Option(help="HTML file to write.", show_default="RUN/report.html or RUN/index.html"),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Show the run live, on this machine only.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(help="Port of --serve.", show_default="the first free one from 8080"),
    ] = None,
) -> None:
    """Write a run as one self-contained HTML page, or show it live.

    RUN is the folder of a run that is done, failed or still running, or a folder such as runs/:
    then the page lists all the runs in it, to sort and filter. With --serve the page is at a local
    address and follows the runs, also through restarts; Ctrl-C stops it.
    """
    if serve and out is not None:
        raise RequestError("--out: --serve writes no file; leave one of them out")
    if port is not None and not serve:
        raise RequestError("--port: only used with --serve; add it")
    refuse_unless_runs(run)
    console = Console(highlight=False, soft_wrap=True)
    if serve:
        from fedstill.report.serve import serve as serve_live

        serve_live(run, port, lambda address: console.print(f"live at {address} (Ctrl-C stops it)"))
        return
    from fedstill.report import write_report

    console.print(f"report: {write_report(run, out)}", markup=False)
