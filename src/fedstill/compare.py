"""``fedstill.compare``: several runs side by side, for scripts and notebooks."""

import html
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedstill.report.compare_page import write_comparison
from fedstill.report.comparison import Comparison
from fedstill.report.comparison import compare as compared
from fedstill.report.table import shown


@dataclass(frozen=True)
class Compared:
    """Runs side by side: a table that a notebook shows, and the page if one was written."""

    comparison: Comparison
    page: Path | None

    def records(self) -> list[dict[str, str]]:
        """The table, one record per run or group of seeds."""
        head, rows = shown(self.comparison)
        return [dict(zip(head, row, strict=True)) for row in rows]

    def __str__(self) -> str:
        head, rows = shown(self.comparison)
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (head, *rows)
        ]
        return "\n".join([*lines, *(f"left out: {why}" for why in self.comparison.left_out)])

    def _repr_html_(self) -> str:
        head, rows = shown(self.comparison)
        line = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows
        )
        left = "".join(f"<p>left out: {html.escape(why)}</p>" for why in self.comparison.left_out)
        return f"<table><thead><tr>{line}</tr></thead><tbody>{body}</tbody></table>{left}"


def compare(
    runs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    target: float | None = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
) -> Compared:
    """Compare runs, given as folders or ``Result`` objects; options as ``fedstill compare``.

    ``target``: the accuracy up to which rounds and bytes are counted. ``out``: an HTML file to
    write, with figures and tables next to it; existing ones are kept unless ``overwrite``.

    >>> fedstill.compare([fedstill.run("feddm"), fedstill.run("fedavg")])
    """
    given = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    comparison = compared([Path(run) for run in given], target)
    page = None
    if out is not None:
        page = write_comparison(comparison, Path(out), overwrite=overwrite)[0]
    return Compared(comparison, page)
