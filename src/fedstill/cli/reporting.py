"""``fedstill report`` and ``fedstill compare``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedstill.errors import RequestError
from fedstill.report import write_report
from fedstill.report.compare_page import write_comparison
from fedstill.report.comparison import compare
from fedstill.report.table import shown


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


def compare_command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.", metavar="RUN...")],
    out: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("comparison.html"),
    target: Annotated[
        float | None,
        typer.Option(
            help="Accuracy up to which rounds and bytes are counted, e.g. 0.9.",
            show_default="the best that all reach",
        ),
    ] = None,
) -> None:
    """Put several runs side by side: a table, curves, and what the bytes buy.

    Runs that differ in the seed alone are one line, with the spread over their seeds. Beside the
    page stand the table as CSV, Markdown and LaTeX and the figures as SVG and PNG.
    """
    comparison = compare(runs, target)
    written = write_comparison(comparison, out)
    console = Console(highlight=False, soft_wrap=True)
    head, rows = shown(comparison)
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(head):
        table.add_column(Text(name), justify="right" if number else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table, soft_wrap=False)
    for words in comparison.left_out:
        console.print(f"left out: {words}", markup=False)
    console.print(f"page: {written[0]} (and {len(written) - 1} files beside it)", markup=False)
