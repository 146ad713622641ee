"""How one column of a table becomes features: public facts that all clients share."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """A number, or (where there are ``values``) one of several categories.

    A number x becomes (x - centre) / half the width of ``low``..``high``, limited to
    ``LIMIT``; a missing one becomes 0, and with ``indicator`` a further feature is 1 there. A
    category becomes one feature per value; a missing one has none.

    ``undeclared`` is the setting that would have declared what was computed from the records
    instead: "ranges", "categories" or "missing". Where privacy is on, it must be empty.
    """

    name: str
    low: float = 0.0
    high: float = 0.0
    values: tuple[str, ...] = ()
    indicator: bool = False
    undeclared: str = ""

    @property
    def width(self) -> int:
        """How many features it becomes."""
        return len(self.values) or 1 + self.indicator

    @property
    def centre(self) -> float:
        """What becomes 0."""
        return self.low + (self.high - self.low) / 2

    @property
    def half(self) -> float:
        """What becomes a distance of 1; a number without a range stays as it is."""
        return (self.high - self.low) / 2 or 1.0


LIMIT = 5.0  # of a scaled number, so that a misprint cannot rule a client's training


def width_of(columns: Sequence[Column]) -> int:
    """How many features a record has."""
    return sum(column.width for column in columns)
