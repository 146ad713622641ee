"""``fedstill compare``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fedstill.draw.console import Console
from fedstill.report.compare_page import write_comparison
from fedstill.report.comparison import compare
from fedstill.report.table import shown


def compare_command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.", metavar="RUN...")],
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("comparison.html"),
    target: Annotated[
        float | None,
        typer.Option(
            help="Count rounds and bytes until this accuracy is reached, e.g. 0.9.",
            show_default="the highest that all runs reach",
        ),
    ] = None,
) -> None:
    """Compare several runs: a table, and curves by round, uploaded byte and simulated minute.

    Each RUN is a run folder. Runs that differ only in the seed are one line, with the spread over
    their seeds. The table is also written as CSV, Markdown and LaTeX, and the figures as SVG and
    PNG, next to the page.
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
    for reason in comparison.left_out:
        console.print(f"left out: {reason}", markup=False)
    console.print(f"page: {written[0]} (and {len(written) - 1} files next to it)", markup=False)
