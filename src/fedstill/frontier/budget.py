"""Time: how long a cell will take, and whether there is time for it."""

import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fedstill.errors import RequestError
from fedstill.frontier.grid import Cell
from fedstill.observe.observer import Observer

_UNITS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(min|[smhd])")


def seconds_in(text: str | float | None) -> float | None:
    """'1h 30min' -> 5400.0; a number is seconds; ``None`` is no limit."""
    if text is None:
        return None
    if isinstance(text, str):
        if not text.strip() or _PART.sub("", text).strip():
            raise RequestError(
                f"--budget {text}: give a time with its unit, such as 30min, 1h or 1h30min"
            )
        text = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    if not 0 < text < float("inf"):
        raise RequestError(f"--budget {text:g}: give a time above 0")
    return float(text)


@dataclass
class Times:
    """What cells took, and from it what others will take."""

    measured: dict[Cell, list[float]] = field(default_factory=dict)

    def add(self, cell: Cell, seconds: float) -> None:
        """A run of this cell took so long."""
        self.measured.setdefault(cell, []).append(seconds)

    def expected(self, cell: Cell) -> float:
        """As long as the cell's other seeds took; else the grid's guess, corrected as the guesses
        of its line turned out, or those of all lines."""
        if cell in self.measured:
            return statistics.fmean(self.measured[cell])
        return cell.seconds * (self._off(lambda c: c.line == cell.line) or self._off() or 1.0)

    def _off(self, which: Callable[[Cell], bool] = lambda _cell: True) -> float | None:
        ratios = [statistics.fmean(t) / c.seconds for c, t in self.measured.items() if which(c)]
        return statistics.median(ratios) if ratios else None


def cheapest(pending: Mapping[Cell, Sequence[int]], times: Times) -> tuple[Cell, int, float] | None:
    """The cell and seed that will take the shortest, and how long; the grid's order among equals,
    and all seeds of a cell before the next."""
    found = [(times.expected(cell), cell, seeds[0]) for cell, seeds in pending.items() if seeds]
    if not found:
        return None
    expected, cell, seed = min(found, key=lambda entry: entry[0])
    return cell, seed, expected


class Deadline(Observer):
    """Stops a run before a round that begins too late. It can be resumed."""

    def __init__(self, at: float | None) -> None:
        self.at, self.passed = at, False

    @property
    def left(self) -> float:
        return float("inf") if self.at is None else self.at - time.monotonic()

    def round_started(self, round: int, clients: list[int]) -> None:
        if self.left < 0:
            self.passed = True
            raise KeyboardInterrupt
