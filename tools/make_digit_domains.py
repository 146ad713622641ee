"""Writes ``src/fedstill/data/domains.npz``, from which ``digit-domains`` is generated.

    pip install scikit-learn matplotlib pillow
    python tools/make_digit_domains.py

It needs scikit-learn for its two sample photographs and matplotlib for the fonts that it ships;
the package itself needs neither. ``src/fedstill/data/NOTICE.md`` has their origin and licences.
"""

from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_sample_images

OUT = Path(__file__).parent.parent / "src" / "fedstill" / "data" / "domains.npz"
FACES = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSansMono",
    "DejaVuSansMono-BoldOblique",
    "DejaVuSerif",
    "DejaVuSerif-Italic",
    "STIXGeneral",
    "STIXGeneralBolIta",
)
SIDE = 24  # pixels of a drawn digit's square
HEIGHT = 18  # pixels of the digit itself
LESS = 4  # the photographs are reduced to a quarter


def photographs() -> NDArray[np.uint8]:
    """Both photographs in grey, each pixel the mean of a 4x4 block."""
    grey = [image @ np.array([0.299, 0.587, 0.114]) for image in load_sample_images().images]
    rows, columns = (side // LESS for side in grey[0].shape)
    blocks = [g[: rows * LESS, : columns * LESS].reshape(rows, LESS, columns, LESS) for g in grey]
    return np.rint([block.mean(axis=(1, 3)) for block in blocks]).astype(np.uint8)


def glyphs() -> NDArray[np.uint8]:
    """The ten digits of every face, white on black, in the middle of a square."""
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return np.array(
        [[_glyph(fonts / f"{face}.ttf", digit) for digit in "0123456789"] for face in FACES]
    )


def _glyph(font_file: Path, digit: str) -> NDArray[np.uint8]:
    large = 8  # drawn larger and then reduced: no hinting to the pixels of one size
    font = ImageFont.truetype(str(font_file), 25 * large)
    left, top, right, bottom = font.getbbox(digit)
    image = Image.new("L", (SIDE * large, SIDE * large))
    size = HEIGHT * large / (bottom - top)
    font = ImageFont.truetype(str(font_file), round(25 * large * size))
    left, top, right, bottom = font.getbbox(digit)
    corner = ((image.width - left - right) / 2, (image.height - top - bottom) / 2)
    ImageDraw.Draw(image).text(corner, digit, fill=255, font=font)
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX))


if __name__ == "__main__":
    np.savez_compressed(OUT, photographs=photographs(), glyphs=glyphs())
    print(f"{OUT}: {OUT.stat().st_size:,} bytes")
