"""A run's synthetic images, small enough for a page: one PNG of tiles per round.

Every tile is stretched to its own range, which is kept beside it, so that the page can show the
images both as what the pixels mean and as what they hide. Rounds or images are thinned out evenly
until all fits into the budget; a note says what was left out.
"""

import base64
import io
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedstill.draw.sets import stretched
from fedstill.errors import RequestError
from fedstill.runs.sets import StoredSet, load_set

BUDGET = 1_500_000  # bytes of pixels; base64 adds a third, and a page stays under 3 MB
MOST_CLIENTS = 50  # more would be specks
_BINS = 32
_MOST_BARS = 60_000  # numbers in all histograms together
_LARGEST_SIDE = 64


@dataclass(frozen=True)
class _Plan:
    """What fits: which rounds, and how many images of a class and client."""

    files: list[Path]
    images: int


def synthetic_pages(files: list[Path], notes: list[str]) -> dict[str, Any] | None:
    """What the page needs to draw the sets; ``None`` where there are no pictures to draw."""
    known = _readable(files, notes)
    if not known:
        return None
    plan = _plan(known)
    last = load_set(plan.files[-1])
    low, high = _range(load_set(plan.files[0]), last)
    clients = max(facts.clients for facts in known.values())
    every = -(-len(plan.files) * clients * _BINS // _MOST_BARS)
    rounds = []
    for number, file in enumerate(plan.files):
        bars = number % every == 0 or file == plan.files[-1]
        rounds.append(_round(file, plan.images, low, high, bars, file.stat().st_mtime_ns))
    return {
        "class_names": list(last.metadata.class_names),
        "rounds": rounds,
        "low": low,
        "high": high,
        "images": plan.images,
        "all_rounds": len(files),
    }


@dataclass(frozen=True)
class _Facts:
    """What there is to know about a file before its images are drawn."""

    complaint: str | None = None
    clients: int = 0
    tiles: int = 0  # pairs of a client and a class
    tile: int = 0  # numbers in a tile


def _readable(files: list[Path], notes: list[str]) -> dict[Path, _Facts]:
    """The files that hold sets. Damaged ones go into ``notes``."""
    known = {file: _facts(file, file.stat().st_mtime_ns) for file in files}
    notes += [facts.complaint for facts in known.values() if facts.complaint]
    return {file: facts for file, facts in known.items() if not facts.complaint}


@lru_cache(maxsize=4096)
def _facts(file: Path, _changed: int) -> _Facts:
    try:
        stored = load_set(file)
    except RequestError as error:
        return _Facts(str(error).replace(str(file), f"synthetic/{file.name}"))
    shape = stored.metadata.shape
    if len(shape) != 3:
        shown = "x".join(map(str, shape))
        return _Facts(f"synthetic/{file.name}: inputs of shape {shown} are not pictures")
    if not len(stored.clients):
        return _Facts(f"synthetic/{file.name}: no images")
    clients = set(stored.clients.unique().tolist()[:MOST_CLIENTS])
    owners = zip(stored.clients.tolist(), _classes(stored).tolist(), strict=True)
    pairs = {(client, label) for client, label in owners if client in clients}
    return _Facts(None, len(clients), len(pairs), _small(stored.images[:1]).numel())


def _plan(known: dict[Path, _Facts]) -> _Plan:
    """All rounds with fewer images each, if that is enough; fewer rounds if it is not."""
    files = list(known)
    images = min(10, BUDGET // sum(facts.tiles * facts.tile for facts in known.values()))
    if images >= 1:
        return _Plan(files, images)
    most = max(2, BUDGET // max(facts.tiles * facts.tile for facts in known.values()))
    keep = np.unique(np.linspace(0, len(files) - 1, min(most, len(files))).round().astype(int))
    return _Plan([files[i] for i in keep], 1)


@lru_cache(maxsize=512)
def _round(
    file: Path, images: int, low: float, high: float, bars: bool, _changed: int
) -> dict[str, Any]:
    """One round's tiles and histograms. Cached: a live page asks again and again."""
    stored = load_set(file)
    classes = _classes(stored)
    pixels = _small(stored.metadata.scaling.undo(stored.images))
    clients: list[int] = stored.clients.unique().tolist()
    rows, owners, labels = [], [], []
    for client in clients[:MOST_CLIENTS]:
        for label in classes[stored.clients == client].unique().tolist():
            held = (stored.clients == client) & (classes == label)
            rows.append(held.nonzero().flatten()[:images])
            owners += [client] * len(rows[-1])
            labels += [label] * len(rows[-1])
    chosen = pixels[torch.cat(rows)]
    flat = chosen.flatten(1)
    found: dict[str, Any] = {
        "round": stored.metadata.round,
        "client": owners,
        "label": labels,
        "low": [round(v, 3) for v in flat.min(1).values.tolist()],
        "high": [round(v, 3) for v in flat.max(1).values.tolist()],
        "sent": len(classes),
        "clients": len(clients),
        **_sheet(stretched(chosen)),
    }
    if bars:
        undone = stored.metadata.scaling.undo(stored.images)
        found["bars"] = {
            str(client): _histogram(undone[stored.clients == client], low, high)
            for client in clients[:MOST_CLIENTS]
        }
    return found


def _sheet(tiles: Tensor) -> dict[str, Any]:
    """Tiles side by side in one PNG."""
    number, channels, height, width = tiles.shape
    across = max(1, min(number, 2000 // width))
    down = -(-number // across)
    data = (tiles * 255).round().byte().permute(0, 2, 3, 1).numpy()
    sheet = np.zeros((down * height, across * width, channels), np.uint8)
    for i in range(number):
        y, x = divmod(i, across)
        sheet[y * height : (y + 1) * height, x * width : (x + 1) * width] = data[i]
    file = io.BytesIO()
    image = Image.fromarray(sheet[:, :, 0] if channels == 1 else sheet)
    image.save(file, format="PNG", optimize=True)
    png = base64.b64encode(file.getvalue()).decode()
    return {"png": png, "across": across, "width": width, "height": height}


def _small(pixels: Tensor) -> Tensor:
    """In one or three channels, and not larger than a page needs."""
    if pixels.shape[1] not in (1, 3):
        pixels = pixels.mean(1, keepdim=True)
    side = max(pixels.shape[2:])
    if side <= _LARGEST_SIDE:
        return pixels
    size = [max(1, round(s * _LARGEST_SIDE / side)) for s in pixels.shape[2:]]
    return torch.nn.functional.interpolate(pixels, size=size, mode="area")


def _range(first: StoredSet, last: StoredSet) -> tuple[float, float]:
    """The axis of the histograms: at least the pixels' range 0..1, and nearly all values."""
    values = [stored.metadata.scaling.undo(stored.images).flatten() for stored in (first, last)]
    both = torch.cat([v[:: max(1, len(v) // 100_000)] for v in values])
    ends = torch.quantile(both, torch.tensor([0.002, 0.998])).tolist()
    # Quarters: an axis that moved with every round of a live run would be redrawn each time.
    return min(0.0, math.floor(ends[0] * 4) / 4), max(1.0, math.ceil(ends[1] * 4) / 4)


def _histogram(pixels: Tensor, low: float, high: float) -> list[int]:
    """Shares of the values in equal bins, in tenths of a percent; what is outside counts at the
    ends."""
    counts = torch.histc(pixels.flatten().clamp(low, high), _BINS, low, high)
    shares: list[int] = (counts / counts.sum().clamp(min=1) * 1000).round().int().tolist()
    return shares


def _classes(stored: StoredSet) -> Tensor:
    return stored.labels.argmax(1) if stored.labels.is_floating_point() else stored.labels
