"""``fedstill compare``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from fedstill.draw.console import Console
from fedstill.runs.place import refuse_unless_comparable

if TYPE_CHECKING:
    from fedstill.report.comparison import Comparison


def compare_command(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders of them.", metavar="RUN...")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="HTML file to write.", show_default="comparison.html, or a free name"),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            help="Count rounds and bytes until this accuracy is reached, e.g. 0.9.",
            show_default="the highest that all runs reach",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the files of an earlier comparison.")
    ] = False,
) -> None:
    """Compare several runs: a table, and curves by round, uploaded byte and simulated minute.

    Each RUN is a run folder, or a folder such as runs/ for all the runs in it. Runs that differ
    only in the seed are one line, with the spread over their seeds. The table is also written as
    CSV, Markdown and LaTeX, and the figures as SVG and PNG, next to the page. Existing files are
    kept, unless --overwrite is given.
    """
    refuse_unless_comparable(runs, target)
    from fedstill.report.compare_page import free_name, write_comparison
    from fedstill.report.comparison import compare

    comparison = compare(runs, target)
    page = out or free_name(Path("comparison.html"), overwrite=overwrite)
    written = write_comparison(comparison, page, overwrite=overwrite)
    console = Console(highlight=False, soft_wrap=True)
    left_out = _print_table(console, comparison)
    for reason in comparison.left_out:
        console.print(f"left out: {reason}", markup=False)
    if left_out:
        where = f"{written[0].stem}.csv"
        console.print(f"no room for: {', '.join(left_out)} (in {where})", markup=False)
    console.print(f"page: {written[0]} (and {len(written) - 1} files next to it)", markup=False)


def _print_table(console: Console, comparison: "Comparison") -> list[str]:
    """Print what fits; the heads of the columns that do not."""
    from fedstill.report.table import columns, fitting, shown

    wanted, widths = fitting(comparison, console.width)
    head, rows = shown(comparison, wanted)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, (name, width) in enumerate(zip(head, widths, strict=True)):
        table.add_column(Text(name), justify="right" if number else "left", width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table, soft_wrap=False)
    return [c.head for c in columns(comparison) if c.head not in head]
