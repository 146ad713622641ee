"""The messages and states that more than one method has."""

import math
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from fedstill.errors import RequestError
from fedstill.types import Params, Task
from fedstill.wire import NormLimit, Schema, TensorSpec, params_specs
from fedstill.wire.schema import Range

# Losses are only reported. No training comes near it, and the mean over clients stays finite.
LOSSES: Range = (0.0, 1e15)


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
    norms = {"update": NormLimit(task.limits.norm)}
    return Schema(Update, params_specs(task, "update"), {"records": record_range(task)}, norms)


def record_range(task: Task, sent: bool = True) -> Range:
    """The bounds of the number of records that a client reports; 0 where it reports none."""
    return (1, task.limits.records, "max_records") if sent else (0, 0)


def input_spec(task: Task, *shape: int | tuple[int, int]) -> TensorSpec:
    """Synthetic inputs of this shape: pixels near the range of real ones.

    Inputs that the scaling leaves as they are, and embedded texts, have no such range.
    """
    limits, scaling = task.limits, task.scaling
    if not scaling.mean or task.model.continuous_shape is not None:
        return TensorSpec(shape, low=-limits.norm, high=limits.norm, setting="wire.max_norm")
    constants = list(zip(scaling.mean, scaling.std, strict=True))
    low = min(-mean / std for mean, std in constants)
    high = max((1 - mean) / std for mean, std in constants)
    slack = limits.pixels * (high - low)
    return TensorSpec(shape, low=low - slack, high=high + slack, setting="wire.pixel_slack")


def set_specs(task: Task, images_per_class: int, field: str) -> dict[str, TensorSpec]:
    """The tensors of a set of hard-labelled images in field ``field`` of a message."""
    if task.model.continuous_shape is not None:
        raise RequestError(
            "method: it distils images of every class, and the records are text; "
            "fedavg, fedprox, scaffold and others that send weights take any records"
        )
    number = (images_per_class, task.classes * images_per_class)
    levels = task.scaling if task.scaling.mean else None
    return {
        f"{field}.images": replace(input_spec(task, number, *task.shape), levels=levels),
        f"{field}.labels": TensorSpec((number,), torch.int64, 0, task.classes - 1),
    }
