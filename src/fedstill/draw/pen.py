"""Drawing with Pillow in points, at twice the pixels."""

import functools

from PIL import Image, ImageDraw, ImageFont

from fedstill.draw.colours import Colour

SCALE = 2  # pixels per point: sharp on dense screens

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


class Pen:
    """A drawing whose coordinates are points."""

    def __init__(self, draw: ImageDraw.ImageDraw) -> None:
        self.draw = draw

    def box(
        self, x: float, y: float, width: float, height: float, fill: str | Colour, round_: float = 0
    ) -> None:
        """A filled box, never thinner than a pixel."""
        corners = (
            round(x * SCALE),
            round(y * SCALE),
            max(round((x + width) * SCALE) - 1, round(x * SCALE)),
            max(round((y + height) * SCALE) - 1, round(y * SCALE)),
        )
        if round_:
            self.draw.rounded_rectangle(corners, radius=round_ * SCALE, fill=fill)
        else:
            self.draw.rectangle(corners, fill=fill)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        fill: str,
        anchor: str,
        bold: bool = False,
    ) -> None:
        """A line of text; ``anchor`` says which point of it (x, y) is, in Pillow's letters."""
        self.draw.text(
            (x * SCALE, y * SCALE),
            text,
            fill=fill,
            font=_font(size),
            anchor=anchor,
            # The built-in font has one weight: a thin outline of the same ink thickens it.
            stroke_width=SCALE / 4 if bold else 0,
            stroke_fill=fill,
        )

    def upright_text(self, x: float, y: float, text: str, size: float, fill: str) -> None:
        """Text that reads upwards, its start at (x, y)."""
        font = _font(size)
        left, top, right, bottom = font.getbbox(text, anchor="ls")
        label = Image.new("L", (round(right - left) + 2, round(bottom - top) + 2))
        ImageDraw.Draw(label).text((-left + 1, -top + 1), text, fill=255, font=font, anchor="ls")
        turned = label.rotate(90, expand=True)
        corner = (round(x * SCALE - turned.width / 2), round(y * SCALE - turned.height))
        self.draw.bitmap(corner, turned, fill=fill)


@functools.cache
def _font(size: float) -> Font:
    # Pillow's built-in font: the same picture on every machine, whatever is installed there.
    return ImageFont.load_default(size * SCALE)


def text_width(text: str, size: float) -> float:
    """Width in points."""
    return _font(size).getlength(text) / SCALE


def fitted(text: str, size: float, room: float) -> str:
    """The text, cut short if it is wider than ``room``."""
    if text_width(text, size) <= room:
        return text
    while text and text_width(text + "...", size) > room:
        text = text[:-1]
    return text + "..."
