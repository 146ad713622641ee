"""Figures for papers: curves and points, each written as SVG and as PNG.

The pages draw their own figures, which follow the mouse; these are the ones to keep.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image, ImageDraw

from fedstill.draw.canvas import Anchor, Axes, AxesStyle, Canvas, Place, log_ticks, ticks
from fedstill.draw.pen import SCALE, Pen, fitted, text_width
from fedstill.draw.svg import Svg
from fedstill.errors import RequestError
from fedstill.files import replacing, write_atomically

WIDTH, HEIGHT = 640.0, 400.0
COLOURS = ("#11707e", "#c2562d", "#5a55b0", "#2f7d32", "#a83a78", "#8a6d00", "#2767b5", "#6b6f76")
_INK, _SOFT, _LINE = "#16242b", "#5a6b73", "#e1e7ea"
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, WIDTH - 18, 42.0, HEIGHT - 48
_STYLE = AxesStyle(grid=_LINE, label=_SOFT, size=11, x_gap=14, y_gap=8, base=_SOFT)
_MOST_NAMES = 10
_ROW = 16.0  # the height of a name in the legend
_POINT = 3.6  # the radius of a point that no line connects


@dataclass(frozen=True)
class Series:
    """A curve or some points: places, and the lower and upper end of the spread at each, drawn as
    a band around a curve and as a vertical line through a point."""

    name: str
    places: Sequence[Place]
    spread: Sequence[tuple[float, float]] = ()
    line: bool = True
    dashed: bool = False
    colour: int = 0
    dots: bool = True  # at the places of a line that is not dashed


@dataclass(frozen=True)
class Figure:
    """What is drawn. ``x_text`` writes a mark of the x axis, whose values are common logarithms if
    ``x_log``; y is a share, so no mark is above 100%."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    x_text: Callable[[float], str] = field(default=lambda v: f"{v:g}")
    y_text: Callable[[float], str] = field(default=lambda v: f"{100 * v:.4g}%")
    x_log: bool = False


def whole(value: float) -> str:
    """A mark of an axis of whole numbers, such as rounds: nothing between them."""
    return f"{value:g}" if value == round(value) else ""


class _Png:
    """Draws with Pillow, at twice the points."""

    def __init__(self) -> None:
        self.image = Image.new("RGB", (round(WIDTH * SCALE), round(HEIGHT * SCALE)), "#ffffff")
        self.draw = ImageDraw.Draw(self.image, "RGBA")
        self.pen = Pen(self.draw)

    def line(
        self, places: Sequence[Place], colour: str, width: float, dashed: bool = False
    ) -> None:
        points = [(x * SCALE, y * SCALE) for x, y in places]
        pieces = [points] if not dashed else _dashes(points, 5.0 * SCALE)
        for piece in pieces:
            self.draw.line(piece, fill=colour, width=max(1, round(width * SCALE)), joint="curve")

    def area(self, places: Sequence[Place], colour: str) -> None:
        self.draw.polygon([(x * SCALE, y * SCALE) for x, y in places], fill=colour + "29")

    def dot(self, x: float, y: float, radius: float, colour: str) -> None:
        box = [
            (x - radius) * SCALE,
            (y - radius) * SCALE,
            (x + radius) * SCALE,
            (y + radius) * SCALE,
        ]
        self.draw.ellipse(box, fill=colour)

    def text(self, x: float, y: float, text: str, size: float, colour: str, anchor: Anchor) -> None:
        self.pen.text(x, y, text, size, colour, f"{anchor}m")


def _dashes(points: Sequence[Place], length: float) -> list[list[Place]]:
    """Every second piece of this length along the line."""
    pieces: list[list[Place]] = []
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        steps = max(1, round(math.hypot(x1 - x0, y1 - y0) / length))
        cut = [(x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps) for i in range(steps + 1)]
        pieces += [[cut[i], cut[i + 1]] for i in range(0, steps, 2)]
    return pieces


@dataclass(frozen=True)
class Plot:
    """A figure that a notebook shows and that can be saved."""

    figure: Figure

    @property
    def svg(self) -> str:
        """The figure as an SVG document."""
        drawing = Svg(WIDTH, HEIGHT, self.figure.title)
        _paint(self.figure, drawing)
        return drawing.document()

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> Path:
        """Write an ``.svg`` or a ``.png`` file."""
        path = Path(path)
        if path.suffix == ".svg":
            write_atomically(path, self.svg.encode())
        elif path.suffix == ".png":
            picture = _Png()
            _paint(self.figure, picture)
            dpi = (72 * SCALE, 72 * SCALE)
            with replacing(path) as temporary:
                picture.image.save(temporary, format="PNG", optimize=True, dpi=dpi)
        else:
            raise RequestError(f"{path}: figures are written as .svg or .png")
        return path


def write_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write ``stem.svg`` and ``stem.png``."""
    plot = Plot(figure)
    return [plot.save(stem.with_name(f"{stem.name}.{kind}")) for kind in ("svg", "png")]


def _range(values: Sequence[float], margin: float) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = (high - low or abs(high) or 1.0) * margin
    return low - room, high + room


def _paint(figure: Figure, on: Canvas) -> None:
    filled = [s for s in figure.series if s.places]
    x0, x1 = _range([x for s in filled for x, _ in s.places], 0.02)
    y0, y1 = _range([y for s in filled for _, y in _ends(s)], 0.06)
    axes = Axes((x0, x1), (y0, y1), _LEFT, _RIGHT, _TOP, _BOTTOM)
    marks = [mark for mark in ticks(y0, y1, 6) if mark <= 1]
    on.text(_LEFT, 20, figure.title, 15, _INK, "l")
    x_marks = (log_ticks if figure.x_log else ticks)(x0, x1, 7)
    axes.draw(on, _STYLE, x_marks, marks, figure.x_text, figure.y_text)
    on.text((_LEFT + _RIGHT) / 2, HEIGHT - 14, figure.x_label, 12, _INK, "m")
    for series in filled:
        _curve(series, axes.at, on)
    _legend([s for s in filled if s.name][:_MOST_NAMES], filled, axes, on)


def _legend(named: Sequence[Series], filled: Sequence[Series], axes: Axes, on: Canvas) -> None:
    """Names and marks, in the corner where they cover the fewest points."""
    room = min(max((text_width(s.name, 11) for s in named), default=0.0), 260) + 30
    height = (len(named) - 1) * _ROW
    places = [axes.at(*place) for series in filled for place in _ends(series)]

    def covered(corner: Place) -> int:
        left, top = corner
        return sum(
            left - 8 < x < left + room and top - _ROW < y < top + height + _ROW for x, y in places
        )

    lefts, tops = (_RIGHT - room, _LEFT + 10), (_BOTTOM - 14 - height, _TOP + 14)
    x, top = min(((left, top) for top in tops for left in lefts), key=covered)
    for row, series in enumerate(named):
        y, colour = top + row * _ROW, COLOURS[series.colour % 8]
        if series.line:
            on.line([(x, y), (x + 16, y)], colour, 3, series.dashed)
        else:
            on.dot(x + 8, y, _POINT, colour)
        on.text(x + 22, y, fitted(series.name, 11, 260), 11, _INK, "l")


def _ends(series: Series) -> list[Place]:
    """Its places, and the ends of their spreads."""
    spread = zip(series.places, series.spread, strict=False)  # a series may have none
    return [*series.places, *((x, end) for (x, _), both in spread for end in both)]


def _curve(series: Series, at: Callable[[float, float], Place], on: Canvas) -> None:
    colour = COLOURS[series.colour % 8]
    places = [at(x, y) for x, y in series.places]
    if series.spread:
        pairs = list(zip(series.places, series.spread, strict=True))
        upper = [at(x, high) for (x, _), (_, high) in pairs]
        lower = [at(x, low) for (x, _), (low, _) in pairs]
        if series.line:
            on.area([*upper, *reversed(lower)], colour)
        else:
            for ends in zip(lower, upper, strict=True):
                on.line(ends, colour, 1)
    if series.line and len(places) > 1:
        on.line(places, colour, 1.4 if series.dashed else 2.2, series.dashed)
    if series.dots and not series.dashed:
        for x, y in places if len(places) <= 40 or not series.line else places[-1:]:
            on.dot(x, y, 2.6 if series.line else _POINT, colour)
