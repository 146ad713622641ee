"""``fedstill report``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedstill.errors import RequestError
from fedstill.report import write_report


def report_command(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[
        Path | None, typer.Option(help="Where the page goes.", show_default="RUN/report.html")
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Show the run live, on this machine only.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(help="Port of --serve.", show_default="the first free from 8080")
    ] = None,
) -> None:
    """Write a run as one self-contained HTML page, or show it live.

    RUN is a run folder, of a run that ended, failed or still goes on. With --serve the page is at
    a local address, follows the run and its restarts, and ends with Ctrl-C.
    """
    console = Console(highlight=False, soft_wrap=True)
    if serve:
        from fedstill.report.serve import serve_run

        if out is not None:
            raise RequestError("--out: --serve writes no file; leave one of them out")
        serve_run(run, port, lambda address: console.print(f"live at {address} (Ctrl-C ends it)"))
        return
    if port is not None:
        raise RequestError("--port: only --serve has one; add it")
    console.print(f"report: {write_report(run, out)}", markup=False)
