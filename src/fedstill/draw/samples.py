"""What the records of a data set look like: one of every class, in every domain."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

from fedstill.data.dataset import Dataset
from fedstill.draw.pen import SCALE, Pen, text_width
from fedstill.errors import RequestError
from fedstill.files import replacing

_MARGIN, _GAP, _HEAD, _SIDE = 24.0, 3.0, 48.0, 44.0
_INK, _SOFT, _PAPER = "#1f2937", "#6b7280", "#ffffff"
_MOST = 20  # classes across, and domains down


def samples_picture(data: Dataset, path_png: Path) -> None:
    """Domains down, classes across: the first training image of each, as a PNG file."""
    if data.tokens or len(data.shape) != 3:
        raise RequestError(f"{data.name}: inputs of shape {data.shape} are not pictures")
    groups = data.train.groups
    names = data.group_names[:_MOST] if groups is not None else (data.name,)
    classes = data.class_names[:_MOST]
    room = max(text_width(name, 12) for name in names) + 12
    width = 2 * _MARGIN + room + len(classes) * (_SIDE + _GAP)
    height = 2 * _MARGIN + _HEAD + len(names) * (_SIDE + _GAP)
    image = Image.new("RGB", (round(width * SCALE), round(height * SCALE)), _PAPER)
    pen = Pen(ImageDraw.Draw(image))
    pen.text(_MARGIN, _MARGIN, data.name, 17, _INK, "lt", bold=True)
    for column, label in enumerate(classes):
        x = _MARGIN + room + column * (_SIDE + _GAP)
        pen.text(x + _SIDE / 2, _MARGIN + _HEAD - 6, label, 10, _SOFT, "mb")
    for row, name in enumerate(names):
        y = _MARGIN + _HEAD + row * (_SIDE + _GAP)
        pen.text(_MARGIN + room - 10, y + _SIDE / 2, name, 12, _INK, "rm")
        for column in range(len(classes)):
            chosen = data.train.labels == column
            if groups is not None:
                chosen = chosen & (groups == row)
            if bool(chosen.any()):
                x = _MARGIN + room + column * (_SIDE + _GAP)
                tile = _tile(data.train.inputs[int(chosen.nonzero()[0, 0])])
                image.paste(tile, (round(x * SCALE), round(y * SCALE)))
    with replacing(path_png) as temporary:
        image.save(temporary, format="PNG", optimize=True)


def _tile(pixels: Tensor) -> Image.Image:
    """One image of bytes, its pixels still to be seen as squares."""
    data = np.ascontiguousarray(pixels.permute(1, 2, 0).numpy())
    side = round(_SIDE * SCALE)
    tile = Image.fromarray(data[:, :, 0] if data.shape[2] != 3 else data)
    return tile.resize((side, side), Image.Resampling.NEAREST)
