"""The measured frontier: its points, its fronts, its table."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedstill.draw.numbers import in_bytes, in_percent
from fedstill.frontier.points import Measured, front
from fedstill.report.table import as_markdown

HEAD = ("method", "rounds", "uploaded", "accuracy", "95% interval", "seeds", "server sees", "front")
TEXTS = 1  # columns before the numbers
NOTE = (
    "front: * on the Pareto front of the methods that send no records; "
    "(*) only on that of all methods"
)
BUDGET_HEAD = "uploaded at most"
BUDGET_NOTE = "Selected by test accuracy among all points, which makes it slightly too high"


@dataclass(frozen=True)
class Frontier:
    """Accuracy against uploaded bytes, for several methods on one partition of one data set.

    ``left_out`` says what was not measured and why; ``failed`` counts the cells whose runs broke
    off. ``page`` is the HTML file; ``frontier.csv`` and others are beside it.
    """

    title: str
    points: tuple[Measured, ...]
    left_out: tuple[str, ...]
    failed: int
    page: Path

    @cached_property
    def front(self) -> list[Measured]:
        """The Pareto front of the methods that send no records."""
        return front(point for point in self.points if not point.cell.sends_records)

    @cached_property
    def front_with_records(self) -> list[Measured]:
        """The Pareto front of all methods."""
        return front(self.points)

    def mark(self, point: Measured) -> str:
        """'*' on the front of methods that send no records, '(*)' on the front of all methods."""
        if point in self.front:
            return "*"
        return "(*)" if point in self.front_with_records else ""

    @cached_property
    def rows(self) -> list[list[str]]:
        """The table as people read it: the end of every cell, and all points of the fronts."""
        shown = [point for point in self.points if point.last or self.mark(point)]
        return [self._row(point) for point in sorted(shown, key=lambda p: p.up_bytes)]

    def _row(self, point: Measured) -> list[str]:
        return [
            point.cell.name,
            str(point.round),
            in_bytes(point.up_bytes),
            in_percent(point.accuracy),
            _interval_text(point),
            str(len(point.accuracies)),
            point.reveals,
            self.mark(point),
        ]

    @cached_property
    def groups(self) -> list[str]:
        """The groups in the order of the grid."""
        return list(dict.fromkeys(point.cell.group for point in self.points))

    def best_within(self, up_bytes: float, group: str | None = None) -> Measured | None:
        """The most accurate point of a group, or of all, for at most so many bytes."""
        inside = [
            point
            for point in self.points
            if point.up_bytes <= up_bytes and group in (None, point.cell.group)
        ]
        return max(inside, key=lambda point: point.accuracy, default=None)

    @cached_property
    def best_by_budget(self) -> list[tuple[str, list[Measured | None]]]:
        """For 1, 3, 10, 30, ... bytes, as far as something fits in and something does not yet: the
        best point of each group."""
        sizes = [point.up_bytes for point in self.points]
        budgets = [float(f"{digit}e{power}") for power in range(13) for digit in (1, 3)]
        some = [budget for budget in budgets if budget >= min(sizes)]
        last = next((n for n, budget in enumerate(some) if budget >= max(sizes)), len(some) - 1)
        return [
            (
                in_bytes(budget).replace(".0 ", " "),
                [self.best_within(budget, group) for group in self.groups],
            )
            for budget in some[: last + 1]
        ]

    @cached_property
    def budget_rows(self) -> list[list[str]]:
        """The same as text: accuracies, and the methods that they are of."""
        return [[budget, *map(_best_text, best)] for budget, best in self.best_by_budget]

    def records(self) -> list[dict[str, Any]]:
        """All points as plain values: shares and bytes."""
        return [
            {
                "line": point.cell.line,
                "size": point.cell.size,
                "group": point.cell.group,
                "round": point.round,
                "up_bytes": point.up_bytes,
                "accuracy": point.accuracy,
                "low": point.interval[0] if point.interval else None,
                "high": point.interval[1] if point.interval else None,
                "accuracies": list(point.accuracies),
                "sends_records": point.cell.sends_records,
                "epsilon": point.epsilon,
                "front": self.mark(point),
            }
            for point in self.points
        ]

    def __str__(self) -> str:
        lines = [list(HEAD), *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        return "\n".join([*text, *(f"left out: {why}" for why in self.left_out)])


def _best_text(point: Measured | None) -> str:
    return "-" if point is None else f"{in_percent(point.accuracy)}: {point.name}"


def _interval_text(point: Measured) -> str:
    if point.interval is None:
        return "-"
    low, high = point.interval
    return f"{100 * low:.1f} to {100 * high:.1f}"


def as_csv(records: Sequence[dict[str, Any]]) -> str:
    """All points, one per line; the accuracies of the seeds separated by blanks."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(records[0]), lineterminator="\n")
    writer.writeheader()
    for record in records:
        seeds = " ".join(f"{value:.6g}" for value in record["accuracies"])
        writer.writerow({**record, "accuracies": seeds})
    return file.getvalue()


def as_document(found: Frontier) -> str:
    """The table as a Markdown page."""
    note = NOTE.replace("*", r"\*")
    budgets = [BUDGET_HEAD, *found.groups]
    parts = [
        f"# {found.title}",
        as_markdown(HEAD, found.rows, texts=TEXTS).rstrip(),
        f"{note}.",
        "## The best of each kind within a budget",
        as_markdown(budgets, found.budget_rows, texts=len(budgets)).rstrip(),
        f"{BUDGET_NOTE}.",
    ]
    if found.left_out:
        parts.append("\n".join(["Left out:", "", *(f"- {why}" for why in found.left_out)]))
    return "\n\n".join(parts) + "\n"
