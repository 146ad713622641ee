"""A partition as a table in the terminal: one coloured cell per class, one bar per client."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.style import Style
from rich.table import Table
from rich.text import Text
from torch import Tensor

from fedstill.data.partition.skew import Counts, as_counts, describe
from fedstill.draw.colours import Colour, is_dark, shade, short_number, strength

_MOST_ROWS, _FIRST, _LAST = 40, 20, 5
_MOST_COLUMNS = 12  # with more classes than this, each is one coloured character
_STRIP = 50  # characters of that strip at most
_BAR = 8
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_SHADES = " ░▒▓█"


def partition_table(
    counts: Tensor | NDArray[np.integer],
    class_names: Sequence[str],
    title: str | None = None,
    unit: str = "records",
) -> Table:
    """Records (``unit``) of each class at each client; long lists keep first and last rows."""
    table = as_counts(counts)
    skew = describe(table)
    view = Table(
        title=title or "Who holds what",
        caption=(
            f"{skew['records']:,} {unit}, {skew['records_min']:,} to {skew['records_max']:,} per "
            f"client, {skew['classes_min']} to {skew['classes_max']} classes per client;\n"
            f"label entropy {skew['label_entropy']:.2f} of {skew['label_entropy_all']:.2f} bits"
        ),
        title_justify="left",
        caption_justify="left",
        box=None,
        padding=0,  # cells touch, as in the picture
        title_style="bold",
        caption_style="dim",
        header_style="bold",
    )
    view.add_column("client", justify="right", no_wrap=True)
    by_name = len(class_names) <= _MOST_COLUMNS
    if by_name:
        for name in class_names:
            view.add_column(Text(_shortened(name, len(class_names))), justify="right", no_wrap=True)
    else:
        view.add_column(f" {len(class_names)} classes, left to right", no_wrap=True)
    view.add_column(f" {unit}", justify="right", no_wrap=True)
    view.add_column("", no_wrap=True)
    # Shades are relative to the whole table, also where rows are left out.
    cells = strength((table if by_name else _strips(table)).astype(np.float64))
    sizes = table.sum(axis=1)
    for client in _shown(len(table)):
        if client is None:
            left_out = len(table) - _FIRST - _LAST
            blanks = [""] * (len(view.columns) - 3)
            view.add_row("⋮", *blanks, "⋮", Text(f" {left_out:,} left out", style="dim"))
            continue
        if by_name:
            pairs = zip(table[client], cells[client], strict=True)
            middle = [_cell(int(count), float(level)) for count, level in pairs]
        else:
            middle = [Text.assemble(" ", *(_block(float(level)) for level in cells[client]))]
        bar = _bar(float(sizes[client] / max(sizes.max(), 1)))
        view.add_row(str(client), *middle, f"{sizes[client]:,}", bar)
    return view


def _shown(clients: int) -> list[int | None]:
    """Clients to show; ``None`` stands for those left out."""
    if clients <= _MOST_ROWS:
        return list(range(clients))
    return [*range(_FIRST), None, *range(clients - _LAST, clients)]


def _cell(count: int, level: float) -> Text:
    if count == 0:
        return Text("·", style="dim")
    colour = shade(level)
    ink = "white" if is_dark(colour) else "black"
    return Text(f" {short_number(count)}", style=f"{ink} on {_hex(colour)}")


def _block(level: float) -> tuple[str, Style]:
    # Both a shade of ink and a colour: the strip still reads without colours.
    mark = "·" if level <= 0 else _SHADES[max(1, min(4, int(np.ceil(level * 4))))]
    return mark, Style(dim=True) if level <= 0 else Style(color=_hex(shade(max(level, 0.35))))


def _bar(share: float) -> Text:
    eighths = round(share * _BAR * 8)
    if share > 0:
        eighths = max(eighths, 1)
    bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
    return Text(" " + bar, style=_hex(shade(0.6)))


def _strips(table: Counts) -> Counts:
    """Neighbouring classes added up until they fit the strip."""
    classes = table.shape[1]
    if classes <= _STRIP:
        return table
    edges = np.linspace(0, classes, _STRIP + 1).astype(int)[:-1]
    return np.add.reduceat(table, edges, axis=1)


def _shortened(name: str, classes: int) -> str:
    room = min(9, max(4, 45 // classes))  # the whole table fits 80 characters
    return f" {name if len(name) <= room else name[: room - 1] + '…'}"


def _hex(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
