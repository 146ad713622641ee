"""A partition as a picture: clients down, classes across, deeper colour for more records."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from fedstill.data.partition.skew import Counts, as_counts, describe
from fedstill.draw.colours import is_dark, shade, short_number, strength
from fedstill.draw.pen import SCALE, Pen, fitted, text_width
from fedstill.files import replacing

_MOST_ROWS = 1000  # with more clients a row is the mean of several
_MARGIN, _GAP = 28, 16
_INK, _SOFT, _LINE, _PAPER, _BAR = "#1f2937", "#6b7280", "#e5e7eb", "#ffffff", "#e8a33d"
_EMPTY = "#c2410c"
_BAR_WIDTH = 120


@dataclass(frozen=True)
class _Layout:
    """Sizes in points; everything is multiplied by ``SCALE`` when drawn."""

    left: float  # of the matrix
    top: float
    cell_width: float
    cell_height: float
    gap: float  # between cells
    rows: int
    columns: int

    @property
    def right(self) -> float:
        return self.left + self.columns * self.cell_width

    @property
    def bottom(self) -> float:
        return self.top + self.rows * self.cell_height


def partition_picture(
    counts: Tensor | NDArray[np.integer],
    class_names: Sequence[str],
    path_png: Path,
    *,
    title: str = "Who holds what",
    subtitle: str | None = None,
    unit: str = "records",
) -> None:
    """Draw the counts [clients, classes] to a PNG file (only Pillow is needed).

    ``unit`` is what is counted: records, or the tokens of a text.
    """
    table = as_counts(counts)
    rows, clients_per_row = _rows(table)
    label_space = max(text_width(name, 11) for name in class_names)
    plan = _plan(rows, len(class_names), label_space, len(table))
    width = max(plan.right + _GAP + _BAR_WIDTH + 48 + _MARGIN, 520)
    height = plan.bottom + 74
    image = Image.new("RGB", (round(width * SCALE), round(height * SCALE)), _PAPER)
    pen = Pen(ImageDraw.Draw(image))

    skew = describe(table)
    pen.text(_MARGIN, 24, title, 19, _INK, "lt", bold=True)
    facts = (
        f"{skew['clients']:,} clients · {skew['records']:,} {unit} · {len(class_names)} classes · "
        f"label entropy {skew['label_entropy']:.2f} of {skew['label_entropy_all']:.2f} bits"
    )
    pen.text(_MARGIN, 51, f"{subtitle} · {facts}" if subtitle else facts, 11.5, _SOFT, "lt")
    _draw_class_names(pen, plan, class_names)
    _draw_cells(pen, plan, rows)
    _draw_clients(pen, plan, clients_per_row)
    _draw_totals(pen, plan, rows, unit)
    _draw_legend(pen, plan, float(rows.max()), clients_per_row, unit)
    _save(image, Path(path_png))


def _rows(table: Counts) -> tuple[NDArray[np.float64], int]:
    """One row per client; thousands of them are averaged in groups of equal size."""
    per_row = -(-len(table) // _MOST_ROWS)
    starts = np.arange(0, len(table), per_row)
    sums = np.add.reduceat(table, starts, axis=0).astype(np.float64)
    return sums / np.diff(np.append(starts, len(table)))[:, None], per_row


def _plan(rows: NDArray[np.float64], classes: int, label_space: float, clients: int) -> _Layout:
    count = len(rows)
    cell_height = _step(count, ((24, 30.0), (50, 18.0), (100, 9.0), (250, 4.0)), 1.0)
    cell_width = _step(classes, ((12, 52.0), (26, 30.0), (100, 13.0)), 4.0)
    gap = 3.0 if cell_height >= 18 and cell_width >= 30 else 1.0 if cell_height >= 9 else 0.0
    upright = label_space > cell_width - 6
    return _Layout(
        left=_MARGIN + 34 + text_width(str(clients - 1), 11),
        top=86 + (min(label_space, 110) if upright else 14),
        cell_width=cell_width,
        cell_height=cell_height,
        gap=gap,
        rows=count,
        columns=classes,
    )


def _step(count: int, sizes: Sequence[tuple[int, float]], otherwise: float) -> float:
    """The size of the first entry that has room for ``count``."""
    return next((size for most, size in sizes if count <= most), otherwise)


def _draw_class_names(pen: Pen, plan: _Layout, names: Sequence[str]) -> None:
    upright = any(text_width(name, 11) > plan.cell_width - 6 for name in names)
    every = max(1, int(np.ceil(13 / plan.cell_width))) if upright else 1
    for column in range(0, plan.columns, every):
        x = plan.left + (column + 0.5) * plan.cell_width
        name = fitted(names[column], 11, 110)
        if upright:
            pen.upright_text(x, plan.top - 7, name, 11, _INK)
        else:
            pen.text(x, plan.top - 12, name, 11, _INK, "mm")


def _draw_cells(pen: Pen, plan: _Layout, rows: NDArray[np.float64]) -> None:
    levels = strength(rows)
    written = plan.cell_height >= 18 and plan.cell_width >= 30
    corner = 4.0 if plan.cell_height >= 30 else 2.0 if written else 0.0
    for (row, column), count in np.ndenumerate(rows):
        x = plan.left + column * plan.cell_width
        y = plan.top + row * plan.cell_height
        colour = shade(float(levels[row, column]))
        width, height = plan.cell_width - plan.gap, plan.cell_height - plan.gap
        pen.box(x + plan.gap / 2, y + plan.gap / 2, width, height, colour, corner)
        if written and count > 0:
            ink = "#ffffff" if is_dark(colour) else _INK
            middle = (x + plan.cell_width / 2, y + plan.cell_height / 2)
            pen.text(*middle, short_number(float(count)), 11, ink, "mm")


def _draw_clients(pen: Pen, plan: _Layout, clients_per_row: int) -> None:
    pen.text(plan.left - 10, plan.top - 12, "client", 11, _SOFT, "rm")
    every = next(n for n in (1, 5, 10, 25, 50) if n * plan.cell_height >= 14)
    for row in range(0, plan.rows, every):
        y = plan.top + (row + 0.5) * plan.cell_height
        pen.text(plan.left - 10, y, str(row * clients_per_row), 11, _INK, "rm")


def _draw_totals(pen: Pen, plan: _Layout, rows: NDArray[np.float64], unit: str) -> None:
    totals = rows.sum(axis=1)
    left = plan.right + _GAP
    pen.text(left, plan.top - 12, unit, 11, _SOFT, "lm")
    # Thin rows have no room for a number each: then the longest bar alone is labelled.
    numbered = range(len(totals)) if plan.cell_height >= 18 else [int(totals.argmax())]
    share = 0.5 if plan.cell_height >= 18 else 0.7 if plan.cell_height > 1 else 1.0
    thickness = plan.cell_height * share
    for row, total in enumerate(totals):
        y = plan.top + (row + 0.5) * plan.cell_height
        length = _BAR_WIDTH * total / max(totals.max(), 1)
        if total > 0:
            pen.box(
                left, y - thickness / 2, max(length, 1), thickness, _BAR, 2 if thickness > 4 else 0
            )
        if row in numbered or (total == 0 and plan.cell_height >= 9):
            ink = _INK if total > 0 else _EMPTY
            text = f"{total:,.0f}" if total > 0 else "none"
            pen.text(left + length + 6, y, text, 11, ink, "lm")


def _draw_legend(pen: Pen, plan: _Layout, most: float, clients_per_row: int, unit: str) -> None:
    y, steps, width = plan.bottom + 22, 90, 180.0
    for step in range(steps):
        colour = shade((step + 0.5) / steps)
        pen.box(plan.left + step * width / steps, y, width / steps + 0.5, 9, colour)
    for level in (0.0, 0.5, 1.0):  # colour follows the square root of the count
        x = plan.left + level * width
        pen.text(x, y + 19, short_number(most * level**2), 10, _SOFT, "mm")
    note = f"{unit} of a class at a client"
    if clients_per_row > 1:
        note = f"{unit} of a class at a client (each row: mean of {clients_per_row} clients)"
    pen.text(plan.left + width + 14, y + 4.5, note, 11, _SOFT, "lm")


def _save(image: Image.Image, path: Path) -> None:
    with replacing(path) as temporary:
        image.save(temporary, format="PNG", optimize=True, dpi=(72 * SCALE, 72 * SCALE))
