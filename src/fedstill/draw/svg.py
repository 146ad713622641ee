"""The one writer of SVG: a canvas whose elements become a self-contained document."""

from collections.abc import Sequence
from html import escape

from fedstill.draw.canvas import Anchor, Place

_ANCHORS = {"l": "start", "m": "middle", "r": "end"}


class Svg:
    """Collects elements; ``document`` is the whole file. All text is escaped."""

    def __init__(self, width: float, height: float, title: str, *, resizable: bool = False) -> None:
        self.width, self.height, self.title = width, height, title
        self.resizable = resizable  # as large as the page that shows it allows
        self.elements: list[str] = []

    def line(
        self, places: Sequence[Place], colour: str, width: float, dashed: bool = False
    ) -> None:
        dash = ' stroke-dasharray="5 5"' if dashed else ""
        self.elements.append(
            f'<polyline points="{_points(places)}" fill="none" stroke="{colour}" '
            f'stroke-width="{width}"{dash} stroke-linejoin="round"/>'
        )

    def area(self, places: Sequence[Place], colour: str) -> None:
        self.elements.append(
            f'<polygon points="{_points(places)}" fill="{colour}" opacity="0.16"/>'
        )

    def dot(self, x: float, y: float, radius: float, colour: str) -> None:
        self.elements.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"/>')

    def text(self, x: float, y: float, text: str, size: float, colour: str, anchor: Anchor) -> None:
        baseline = y + size * 0.35
        self.elements.append(
            f'<text x="{x:.1f}" y="{baseline:.1f}" font-size="{size}" fill="{colour}" '
            f'text-anchor="{_ANCHORS[anchor]}">{escape(text)}</text>'
        )

    def document(self) -> str:
        """The file's text: the elements on white."""
        size = "" if self.resizable else f'width="{self.width:g}" height="{self.height:g}" '
        return (
            '<svg xmlns="http://www.w3.org/2000/svg" '
            f'viewBox="0 0 {self.width:g} {self.height:g}" '
            f'{size}font-family="sans-serif" role="img">'
            f'<title>{escape(self.title)}</title><rect width="100%" height="100%" fill="#fff"/>'
            f"{''.join(self.elements)}</svg>\n"
        )


def _points(places: Sequence[Place]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
