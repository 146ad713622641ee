"""The messages that more than one method sends."""

from dataclasses import dataclass
from typing import Protocol

from fedstill.types import Params, Task
from fedstill.wire import Schema, params_specs

MANY = float(2**40)  # an upper limit for counts that is merely sane


@dataclass(frozen=True)
class Weights:
    """Down: the model's weights."""

    params: Params


@dataclass(frozen=True)
class Update:
    """Up: a vector of the weights' shape, and how many records stand behind it."""

    update: Params
    records: int


class Counted(Protocol):
    """A message that says how many records stand behind it."""

    @property
    def records(self) -> int: ...


def weights_schema(task: Task) -> Schema[Weights]:
    """What ``Weights`` look like for this task."""
    return Schema(Weights, params_specs(task, "params"))


def update_schema(task: Task) -> Schema[Update]:
    """What ``Update`` looks like for this task."""
    return Schema(Update, params_specs(task, "update"), {"records": (1, MANY)})
