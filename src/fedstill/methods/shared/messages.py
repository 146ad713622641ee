"""The messages and states that more than one method has."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedstill.errors import RequestError
from fedstill.types import Params, Task
from fedstill.wire import Schema, TensorSpec, params_specs

MANY = float(2**40)  # a generous upper limit for counts


@dataclass(frozen=True)
class Weights:
    """Down: the model's weights."""

    params: Params


@dataclass(frozen=True)
class Update:
    """Up: a vector of the weights' shape, and the client's number of records."""

    update: Params
    records: int


@dataclass(frozen=True)
class Region:
    """Down: the weights, and the radius around them within which images replace records."""

    params: Params
    radius: float


@dataclass(frozen=True)
class LastSet:
    """Client state: the images of its last round, if any."""

    images: Tensor | None = None


class Counted(Protocol):
    """A message with the client's number of records."""

    @property
    def records(self) -> int: ...


def weights_schema(task: Task) -> Schema[Weights]:
    """The schema of ``Weights`` for this task."""
    return Schema(Weights, params_specs(task, "params"))


def region_schema(task: Task) -> Schema[Region]:
    """The schema of ``Region`` for this task."""
    return Schema(Region, params_specs(task, "params"), {"radius": (0, math.inf)})


def update_schema(task: Task) -> Schema[Update]:
    """The schema of ``Update`` for this task."""
    return Schema(Update, params_specs(task, "update"), {"records": (1, MANY)})


def set_specs(task: Task, images_per_class: int, field: str) -> dict[str, TensorSpec]:
    """The tensors of a set of hard-labelled images in field ``field`` of a message."""
    if task.model.continuous_shape is not None:
        raise RequestError(
            "method: it distils images of every class, and the records are text; "
            "fedavg, fedprox, scaffold and others that send weights take any records"
        )
    number = (images_per_class, task.classes * images_per_class)
    return {
        f"{field}.images": TensorSpec((number, *task.shape)),
        f"{field}.labels": TensorSpec((number,), torch.int64, 0, task.classes - 1),
    }
