"""Pictures of synthetic sets: what ``fedstill show RUN`` writes.

For every client and round a sheet with one column per class, twice: *clipped* (the scaling undone,
values outside 0..1 cut off: what the pixels mean) and *stretched* (each image from its darkest to
its brightest value: what the pixels hide). For every round an overview: clients down, classes
across as in all pictures of clients, one image of each. A set that only the server distilled needs
none.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw
from torch import Tensor

from fedstill.draw.pen import SCALE, Pen, fitted, text_width
from fedstill.errors import RequestError
from fedstill.files import replacing
from fedstill.records import SERVER
from fedstill.runs.place import rounds_to_show
from fedstill.runs.sets import StoredSet, load_set
from fedstill.types import silent

_INK, _SOFT, _PAPER, _EMPTY = "#1f2937", "#6b7280", "#ffffff", "#f1f3f5"
_MARGIN, _GAP, _HEAD, _PANEL_HEAD = 24.0, 3.0, 56.0, 22.0
_SMALLEST, _LARGEST = 28.0, 44.0  # side of an image, in points
_WIDEST_PANEL = 560.0
_LABEL_ROOM = 120.0
_MOST_DOWN = 50  # images of a class, or clients: more would be too tall

Tone = Callable[[Tensor], Tensor]  # pixels around 0..1 into 0..1


def clipped(pixels: Tensor) -> Tensor:
    """Values outside 0..1 cut off."""
    return pixels.clamp(0, 1)


def stretched(pixels: Tensor) -> Tensor:
    """Each image from its smallest to its largest value; one that is all the same is grey."""
    flat = pixels.flatten(1)
    low, high = flat.min(1).values, flat.max(1).values
    shape = (-1, *[1] * (pixels.dim() - 1))
    spread = (high - low).view(shape)
    return ((pixels - low.view(shape)) / spread.clamp(min=1e-12)).where(spread > 0, 0.5)


TONES: dict[str, Tone] = {"clipped to 0 .. 1": clipped, "stretched, each image": stretched}


@dataclass(frozen=True)
class _Sheet:
    """A table of pictures: ``cells[row][column]`` is a row of the set's images, or nothing."""

    title: str
    subtitle: str
    rows: Sequence[str]
    cells: Sequence[Sequence[int | None]]
    columns: Sequence[str]


def show(
    run_folder: Path,
    out: Path | None = None,
    *,
    rounds: Sequence[int] = (),
    clients: Sequence[int] = (),
    progress: Callable[[int, int], None] = silent,
) -> list[Path]:
    """Draw a run's rounds, by default into its folder ``pictures``; the files written.

    ``rounds`` and ``clients``: only these; empty: all. A client's sheet alone has no overview.
    """
    chosen = rounds_to_show(run_folder, rounds).values()
    written: list[Path] = []
    for done, file in enumerate(chosen, 1):
        written += draw_round(load_set(file), out or run_folder / "pictures", clients)
        progress(done, len(chosen))
    return written


def draw_round(stored: StoredSet, out: Path, only: Sequence[int] = ()) -> list[Path]:
    """An overview and a sheet for each client; one sheet where the server alone has a set.

    ``only``: the sheets of these clients.
    """
    _check_pictures(stored)
    stem = f"round-{stored.metadata.round:04d}"
    clients: list[int] = stored.clients.unique().tolist()
    _check_clients(stored, only)
    if clients == [SERVER]:
        sheets = {f"{stem}.png": _client(stored, SERVER)}
    else:
        sheets = {} if only else {f"{stem}.png": _overview(stored, clients)}
        for client in only or clients:
            name = "server" if client == SERVER else f"client-{client:03d}"
            sheets[f"{stem}-{name}.png"] = _client(stored, client)
    for name, sheet in sheets.items():
        with replacing(out / name) as temporary:
            # Not optimised: a run has hundreds, and 6% fewer bytes would take four times as long.
            _drawn(stored, sheet).save(temporary, format="PNG")
    return [out / name for name in sheets]


def picture(stored: StoredSet, client: int | None = None) -> Image.Image:
    """The overview of a round, or the sheet of one client."""
    _check_pictures(stored)
    clients: list[int] = stored.clients.unique().tolist()
    if client is None and clients != [SERVER]:
        return _drawn(stored, _overview(stored, clients))
    chosen = SERVER if client is None else client
    _check_clients(stored, [chosen])
    return _drawn(stored, _client(stored, chosen))


def _check_pictures(stored: StoredSet) -> None:
    if len(stored.metadata.shape) != 3:
        shape = "x".join(map(str, stored.metadata.shape))
        raise RequestError(f"{stored.metadata.data}: inputs of shape {shape} are not pictures")


def _check_clients(stored: StoredSet, asked: Sequence[int]) -> None:
    clients: list[int] = stored.clients.unique().tolist()
    if missing := sorted(set(asked) - set(clients)):
        raise RequestError(
            f"--client {missing[0]}: sent no set in round {stored.metadata.round}; there are those "
            f"of {', '.join(_short_name(client) for client in clients)}"
        )


def _client(stored: StoredSet, client: int) -> _Sheet:
    metadata, labels = stored.metadata, stored.classes
    sent = stored.clients == client
    held: list[int] = labels[sent].unique().tolist()
    columns = [
        (sent & (labels == label)).nonzero().flatten().tolist()[:_MOST_DOWN] for label in held
    ]
    return _Sheet(
        f"{_owner(client)}, round {metadata.round}",
        f"{metadata.method} on {metadata.data}: {int(sent.sum())} images, {len(held)} classes",
        [""] * max(map(len, columns)),
        list(itertools.zip_longest(*columns)),
        [metadata.class_names[label] for label in held],
    )


def _overview(stored: StoredSet, clients: Sequence[int]) -> _Sheet:
    metadata, labels = stored.metadata, stored.classes
    shown = clients[:_MOST_DOWN]
    cells: list[list[int | None]] = []
    for client in shown:
        sent = stored.clients == client
        found = [(sent & (labels == c)).nonzero() for c in range(len(metadata.class_names))]
        cells.append([int(rows[0, 0]) if len(rows) else None for rows in found])
    some = "" if len(shown) == len(clients) else f" (the first {len(shown)} shown)"
    return _Sheet(
        f"Round {metadata.round}: what the clients sent",
        f"{metadata.method} on {metadata.data}: {len(labels)} images from {len(clients)} "
        f"clients{some}; one of each class, clients down",
        [_short_name(c) for c in shown],
        cells,
        metadata.class_names,
    )


def _short_name(client: int) -> str:
    return "server" if client == SERVER else str(client)


def _owner(client: int) -> str:
    return "The server's set" if client == SERVER else f"Client {client}"


def _drawn(stored: StoredSet, sheet: _Sheet) -> Image.Image:
    across = len(sheet.columns)
    side = min(_LARGEST, max(_SMALLEST, _WIDEST_PANEL / across))
    label_room = max(text_width(fitted(name, 12, _LABEL_ROOM), 12) for name in sheet.rows) + 12
    panel = label_room + across * (side + _GAP)
    heads = [fitted(name, 10, _LABEL_ROOM) for name in sheet.columns]
    head_room = max(text_width(name, 10) for name in heads)
    upright = head_room > side  # long names read upwards
    head = _PANEL_HEAD + (head_room + 4.0 if upright else 16.0)
    height = head + len(sheet.rows) * (side + _GAP)
    beside = 2 * panel <= 2 * _WIDEST_PANEL
    steps = (panel + 28.0, 0.0) if beside else (0.0, height + 20.0)
    content = panel + steps[0]
    heading = max(text_width(sheet.title, 17) + 8, text_width(sheet.subtitle, 11))
    width = 2 * _MARGIN + max(content, heading)
    total = _MARGIN + _HEAD + height + steps[1] + _MARGIN
    image = Image.new("RGB", (round(width * SCALE), round(total * SCALE)), _PAPER)
    pen = Pen(ImageDraw.Draw(image))
    pen.text(_MARGIN, _MARGIN, sheet.title, 17, _INK, "lt", bold=True)
    pen.text(_MARGIN, _MARGIN + 25, sheet.subtitle, 11, _SOFT, "lt")
    pixels = stored.metadata.scaling.undo(stored.images)
    for number, (name, tone) in enumerate(TONES.items()):
        left, top = _MARGIN + number * steps[0], _MARGIN + _HEAD + number * steps[1]
        pen.text(left + label_room, top, name, 11, _SOFT, "lt")
        for column, label in enumerate(heads):
            x = left + label_room + column * (side + _GAP) + side / 2
            if upright:
                pen.upright_text(x, top + head - 5, label, 10, _SOFT)
            else:
                pen.text(x, top + head - 5, label, 10, _SOFT, "mb")
        toned = tone(pixels)
        for row, (label, cells) in enumerate(zip(sheet.rows, sheet.cells, strict=True)):
            y = top + head + row * (side + _GAP)
            text = fitted(label, 12, _LABEL_ROOM)
            pen.text(left + label_room - 10, y + side / 2, text, 12, _INK, "rm")
            for column, cell in enumerate(cells):
                x = left + label_room + column * (side + _GAP)
                if cell is None:
                    pen.box(x, y, side, side, _EMPTY, round_=3)
                else:
                    image.paste(_tile(toned[cell], side), (round(x * SCALE), round(y * SCALE)))
    return image


def _tile(pixels: Tensor, side: float) -> Image.Image:
    """One image, its pixels still to be seen as squares."""
    channels, height, width = pixels.shape
    if channels not in (1, 3):
        pixels = pixels.mean(0, keepdim=True)
    data = (pixels * 255).round().byte().permute(1, 2, 0).contiguous().numpy()
    tile = Image.fromarray(data.squeeze(2) if data.shape[2] == 1 else data)
    scale = side * SCALE / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return tile.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX)
