"""What was measured: points of bytes and accuracy, their intervals, and the Pareto front."""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fedstill.draw.numbers import counted
from fedstill.frontier.grid import Cell
from fedstill.frontier.running import Outcome
from fedstill.report.comparison import Entry
from fedstill.report.source import open_run

# Student's t for a 95% interval, by degrees of freedom; beyond them the expansion in 1/n is exact
# to three digits.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95% confidence interval of the mean of accuracies, within 0 and 1; ``None`` for one."""
    if len(values) < 2:
        return None
    free = len(values) - 1
    t = _T95[free - 1] if free <= len(_T95) else 1.95996 + 2.37227 / free + 2.8225 / free**2
    mean = statistics.fmean(values)
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    return max(0.0, mean - half), min(1.0, mean + half)


@dataclass(frozen=True)
class Measured:
    """A cell after a round: bytes uploaded until then by all clients, and accuracy by seed."""

    cell: Cell
    round: int
    last: bool  # the cell's last round
    up_bytes: float
    accuracies: tuple[float, ...]
    epsilon: float | None

    @property
    def accuracy(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def interval(self) -> tuple[float, float] | None:
        return interval(self.accuracies)

    @property
    def reveals(self) -> str:
        """What clients let the server see, in words."""
        if self.cell.sends_records:
            return "records"
        return "no privacy" if self.epsilon is None else f"epsilon {self.epsilon:.3g}"

    @property
    def name(self) -> str:
        return f"{self.cell.name}, {counted(self.round, 'round')}"


def points_of(outcomes: Iterable[Outcome]) -> list[Measured]:
    """Every evaluated round of every cell that has a complete run, means over its seeds."""
    return [point for outcome in outcomes if outcome.runs for point in _rounds(outcome)]


def _rounds(outcome: Outcome) -> Iterator[Measured]:
    cell = outcome.cell
    entry = Entry(cell.name, tuple(map(open_run, outcome.runs)))
    points, epsilon = entry.points, entry.mean("epsilon")
    for p in points:
        last = p is points[-1]
        yield Measured(cell, p.round, last, p.up_bytes, p.accuracies, epsilon)


def front(points: Iterable[Measured]) -> list[Measured]:
    """The Pareto front: no other point is better for as few bytes, or as good for fewer."""
    best: list[Measured] = []
    for point in sorted(points, key=lambda p: (p.up_bytes, -p.accuracy)):
        if not best or point.accuracy > best[-1].accuracy:
            best.append(point)
    return best
