"""What figures are drawn on, in points, whether it becomes an SVG or a PNG file; and their axes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Place = tuple[float, float]
Anchor = Literal["l", "m", "r"]  # which end of a text stands at its x, or its middle


class Canvas(Protocol):
    """Lines and text. A text's y is the middle of its height."""

    def line(
        self, places: Sequence[Place], colour: str, width: float, dashed: bool = False
    ) -> None:
        """A line through all places."""

    def area(self, places: Sequence[Place], colour: str) -> None:
        """A translucent area."""

    def dot(self, x: float, y: float, radius: float, colour: str) -> None:
        """A filled circle."""

    def text(self, x: float, y: float, text: str, size: float, colour: str, anchor: Anchor) -> None:
        """A line of text."""


@dataclass(frozen=True)
class AxesStyle:
    """Colours and sizes of axes; ``x_gap`` and ``y_gap`` lie between an axis and its labels."""

    grid: str
    label: str
    size: float
    x_gap: float
    y_gap: float
    base: str | None = None  # the colour of the x axis, where it is drawn


@dataclass(frozen=True)
class Axes:
    """Linear axes: the ranges of both, and the part of the canvas that they span."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    left: float
    right: float
    top: float
    bottom: float

    def at(self, x: float, y: float) -> Place:
        """The place of a point."""
        (x0, x1), (y0, y1) = self.x_range, self.y_range
        return (
            self.left + (x - x0) / (x1 - x0) * (self.right - self.left),
            self.bottom - (y - y0) / (y1 - y0) * (self.bottom - self.top),
        )

    def draw(
        self,
        on: Canvas,
        style: AxesStyle,
        x_ticks: Sequence[float],
        y_ticks: Sequence[float],
        x_text: Callable[[float], str],
        y_text: Callable[[float], str],
    ) -> None:
        """A grid line and a label at each y tick, a label at each x tick."""
        for tick in y_ticks:
            y = self.at(self.x_range[0], tick)[1]
            on.line([(self.left, y), (self.right, y)], style.grid, 1)
            on.text(self.left - style.y_gap, y, y_text(tick), style.size, style.label, "r")
        for tick in x_ticks:
            x = self.at(tick, self.y_range[0])[0]
            on.text(x, self.bottom + style.x_gap, x_text(tick), style.size, style.label, "m")
        if style.base is not None:
            on.line([(self.left, self.bottom), (self.right, self.bottom)], style.base, 1)


def ticks(low: float, high: float, count: int) -> list[float]:
    """About ``count`` round values within the range."""
    rough = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def log_ticks(low: float, high: float, count: int) -> list[float]:
    """About ``count`` round values of an axis of common logarithms, as logarithms: 1, 2 and 5 in
    every decade, fewer where there is no room, more within one decade."""
    decades = range(math.floor(low), math.ceil(high) + 1)
    for within in ((1, 2, 5), (1, 3), (1,)):
        found = [d + math.log10(m) for d in decades for m in within]
        found = [mark for mark in found if low <= mark <= high]
        if len(found) <= count:
            break
    if len(found) < 2:
        return [math.log10(value) for value in ticks(10**low, 10**high, count)]
    return found[:: max(1, math.ceil(len(found) / count))]
