"""The private mechanism on random records, for the tests."""

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedstill.models import MLP, ConvNet
from fedstill.privacy.ledger import Ledger
from fedstill.privacy.mechanism import DoorTerms, PrivateRecords
from fedstill.privacy.randomness import Replayed
from fedstill.records import Records, Split
from fedstill.rng import Rng
from fedstill.scaling import Scaling
from fedstill.types import ClientContext, Task

NO_CLIP = 1e9


def toy_task(model: Any = None, classes: int = 3) -> Task:
    model = model or ConvNet((1, 8, 8), classes, width=4)
    if isinstance(model, MLP) and len(model.shape) == 1:  # on feature vectors
        return Task(model, model.shape, classes, 1, 1, Scaling((), ()))
    return Task(model, (1, 8, 8), classes, 1, 1, Scaling((0.5,), (0.25,)))


def some_records(task: Task, number: int, seed: int = 0) -> Records:
    generator = Rng(seed).at("records").torch()
    shape = (max(1, number), *task.shape)
    pixels = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    if not task.scaling.mean:
        pixels = pixels / 1000
    labels = torch.randint(0, task.classes, (max(1, number),), generator=generator)
    return Records(Split(pixels, labels), torch.arange(number), task.scaling)


def without(records: Records, position: int) -> Records:
    """The neighbouring data set that lacks one record."""
    keep = torch.arange(len(records)) != position
    return dataclasses.replace(records, index=records.index[keep])


class ByRecord:
    """Replayed draws that belong to a record, so that neighbours share those of the others."""

    def __init__(self, rng: Rng, index: Tensor, sigma_zero: bool = False) -> None:
        self.replayed, self.index = Replayed(rng), index

    def uniform(self, access: int, number: int) -> Tensor:
        most = int(self.index.max()) + 1 if len(self.index) else 0
        return self.replayed.uniform(access, most)[self.index]

    def normal(self, access: int, number: int) -> Tensor:
        return self.replayed.normal(access, number)


def door(folder: Path, records: Records, task: Task, **options: Any) -> PrivateRecords:
    settings: dict[str, Any] = {
        "round": 1,
        "rate": 1.0,
        "sigma": 0.0,
        "clip": NO_CLIP,
        "size": max(1, len(records)),
        "classes": torch.arange(task.classes),
        "chunk": task.chunk,
        **options,
    }
    ledger = Ledger(folder / "ledger.jsonl", settings["rate"], settings["sigma"])
    randomness = ByRecord(Rng(5), records.index)
    round, chunk = settings.pop("round"), settings.pop("chunk")
    return PrivateRecords(records, ledger, randomness, DoorTerms(**settings), round, chunk)


def private_context(folder: Path, records: Records, task: Task, **options: Any) -> ClientContext:
    return ClientContext(task, 1, 0, Rng(3), private=door(folder, records, task, **options))
