"""Messages that are as declared and meant to do harm: what the server must survive."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fedstill.build import BuiltExperiment
from fedstill.engine.base import Answer, Progress, Work
from fedstill.engine.local import InProcess
from fedstill.types import Params
from fedstill.wire import Schema, tree

HOSTILE = 1  # the client that sends such messages
_HUGE = 3e38  # nearly the largest float32

Spoil = Callable[[Params, Schema[Any]], Params]


class HostileClient(InProcess):
    """Every message of one client is replaced, after its own checks, as an attacker would do it."""

    def __init__(self, built: BuiltExperiment, spoil: Spoil) -> None:
        super().__init__(built)
        self._spoil, self._schema = spoil, built.method.upload(built.task)

    def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
        for answer in super().exchange(works, progress):
            if answer.client != HOSTILE or answer.error is not None:
                yield answer
                continue
            tensors, header = tree.unpack(answer.message)
            spoilt = tree.pack(self._spoil(tensors, self._schema), header)
            yield dataclasses.replace(answer, message=spoilt)


def huge(tensors: Params, schema: Schema[Any]) -> Params:
    """Right shapes and types, and finite: but any sum of two such numbers overflows."""
    return {k: torch.full_like(t, _HUGE) if _floats(t) else t for k, t in tensors.items()}


def at_the_bounds(tensors: Params, schema: Schema[Any]) -> Params:
    """The largest values that are declared."""
    extreme = dict(tensors)
    for name, tensor in tensors.items():
        if _floats(tensor) and math.isfinite(schema.tensors[name].high):
            extreme[name] = torch.full_like(tensor, schema.tensors[name].high)
    for field, limit in schema.norms.items():
        names = [n for n in tensors if n == field or n.startswith(f"{field}.")]
        numbers = sum(tensors[name].numel() for name in names)
        # A hair less than the limit: rounding to float32 must not exceed it.
        value = limit.most / math.sqrt(numbers) * (1 - 1e-6)
        extreme |= {name: torch.full_like(tensors[name], value) for name in names}
    return extreme


def _floats(tensor: Tensor) -> bool:
    return tensor.dtype.is_floating_point
