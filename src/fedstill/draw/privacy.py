"""What a privacy plan costs round by round, as a picture: ``fedstill privacy --out``."""

from collections.abc import Sequence

from fedstill.draw.canvas import Axes, AxesStyle
from fedstill.draw.svg import Svg

_WIDTH, _HEIGHT = 560.0, 300.0
_INK, _CURVE, _SIZE = "#333", "#1f6fb2", 12
_STYLE = AxesStyle(grid="#ddd", label=_INK, size=_SIZE, x_gap=13.8, y_gap=6)
_MARKS = (0.0, 0.25, 0.5, 0.75, 1.0)  # shares of each axis


def epsilon_figure(points: Sequence[tuple[int, float]], title: str) -> str:
    """Epsilon by round, from pairs of both, as a self-contained SVG picture."""
    last = max(r for r, _ in points)
    top = max(e for _, e in points) * 1.1 or 1.0
    axes = Axes((0, last), (0, top), left=56, right=_WIDTH - 20, top=40, bottom=_HEIGHT - 40)
    picture = Svg(_WIDTH, _HEIGHT, title, resizable=True)
    picture.text(axes.left, 17.8, title, _SIZE, _INK, "l")
    axes.draw(
        picture,
        _STYLE,
        [last * share for share in _MARKS],
        [top * share for share in _MARKS],
        "{:.4g}".format,
        "{:.2g}".format,
    )
    places = [axes.at(r, e) for r, e in points]
    picture.line(places, _CURVE, 2)
    for x, y in places:
        picture.dot(x, y, 3, _CURVE)
    picture.text(_WIDTH / 2, _HEIGHT - 8.2, "round", _SIZE, _INK, "m")
    return picture.document()
