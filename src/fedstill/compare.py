"""``fedstill.compare``: several runs side by side, for scripts and notebooks."""

import html
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedstill.draw.tables import in_html, in_text
from fedstill.report.compare_page import write_comparison
from fedstill.report.comparison import Comparison
from fedstill.report.comparison import compare as compared
from fedstill.report.table import shown


@dataclass(frozen=True, repr=False)
class Compared:
    """Runs side by side: a table that a notebook shows, and the page if one was written."""

    comparison: Comparison
    page: Path | None

    def records(self) -> list[dict[str, str]]:
        """The table, one record per run or group of seeds."""
        head, rows = shown(self.comparison)
        return [dict(zip(head, row, strict=True)) for row in rows]

    def __repr__(self) -> str:
        table = in_text(*shown(self.comparison))
        return "\n".join([table, *(f"left out: {why}" for why in self.comparison.left_out)])

    def _repr_html_(self) -> str:
        left = "".join(f"<p>left out: {html.escape(why)}</p>" for why in self.comparison.left_out)
        return in_html(*shown(self.comparison)) + left


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
