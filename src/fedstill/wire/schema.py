"""What a message must look like: a method declares it, and both sides check against it."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from fedstill.errors import WireError
from fedstill.types import Task
from fedstill.wire import tree
from fedstill.wire.codecs import find_codec
from fedstill.wire.flat import FlatForm
from fedstill.wire.spec import TensorSpec, remedy_of

M = TypeVar("M")
# Lowest and highest value of a number, and the setting to change where an honest one exceeds them.
Range = tuple[float, float] | tuple[float, float, str]

_HEADER_BYTES = 4096  # room for the header, and for each entry of it
_HEADER_BYTES_PER_TENSOR = 512


@dataclass(frozen=True)
class NormLimit:
    """The largest Euclidean norm of all tensors of a field together, and its setting."""

    most: float
    setting: str = "wire.max_norm"


@dataclass(frozen=True)
class Schema(Generic[M]):
    """What a message must look like: its type, its tensors by dotted name, its numbers.

    ``norms`` bounds a field of the message as one vector. No number may be NaN or infinite.
    """

    type: type[M]
    tensors: Mapping[str, TensorSpec] = field(default_factory=dict)
    numbers: Mapping[str, Range] = field(default_factory=dict)
    norms: Mapping[str, NormLimit] = field(default_factory=dict)

    def payload(self, codec: str) -> int:
        """The most bytes that the tensors themselves may take, before compression."""
        coder = find_codec(codec)
        return sum(
            coder.most(s) if s.dtype.is_floating_point else s.most * s.dtype.itemsize
            for s in self.tensors.values()
        )

    def limit(self, codec: str) -> int:
        """The most bytes a message may have, header included."""
        if codec not in self._limits:
            header = _HEADER_BYTES + _HEADER_BYTES_PER_TENSOR * len(self.tensors)
            self._limits[codec] = self.payload(codec) + header
        return self._limits[codec]

    @cached_property
    def _limits(self) -> dict[str, int]:
        """By codec: they are asked for with every message."""
        return {}

    @cached_property
    def flat(self) -> FlatForm | None:
        """The form of these messages as one buffer, if it is fixed."""
        return FlatForm.of(self.tensors, {key: limit.most for key, limit in self.norms.items()})

    def check(self, message: M) -> None:
        """Refuse a message that is not as declared."""
        tensors, skeleton = tree.flatten(message)
        self.check_form(tensors)
        self.check_values(tensors, skeleton)

    def check_form(self, tensors: Mapping[str, Tensor]) -> None:
        """Refuse tensors with other names, types or shapes than those declared."""
        name = self.type.__name__
        if tensors.keys() != self.tensors.keys():
            odd = sorted(set(tensors) ^ set(self.tensors))[0]
            problem = "is missing" if odd in self.tensors else "was not declared"
            raise WireError(f"{name}: tensor '{odd}' {problem}")
        for key, value in tensors.items():
            if complaint := self.tensors[key].form_complaint(value):
                raise WireError(f"{name}: '{key}' {complaint}")

    def check_values(self, tensors: Mapping[str, Tensor], skeleton: Any) -> None:
        """Refuse values of tensors of the right form, and numbers, that are not as declared."""
        name = self.type.__name__
        lengths, finite = self._lengths(tensors)
        for key, value in tensors.items():
            if key not in finite and (complaint := self.tensors[key].value_complaint(value)):
                raise WireError(f"{name}: '{key}' {complaint}")
        self.check_numbers(skeleton)
        for key, limit in self.norms.items():
            if (length := lengths[key]) > limit.most:
                raise WireError(
                    f"{name}: '{key}' has norm {length:.3g}, at most {limit.most:g} is declared"
                    f"{remedy_of(limit.setting)}"
                )

    def check_numbers(self, skeleton: Any) -> None:
        """Refuse numbers outside of their ranges, NaN and infinity."""
        name = self.type.__name__
        for key, (low, high, *setting) in self.numbers.items():
            number = skeleton[key]
            if not low <= number <= high:
                remedy = remedy_of("".join(setting))
                raise WireError(
                    f"{name}: '{key}' is {number}, declared {low:g} .. {high:g}{remedy}"
                )
        if not all(map(math.isfinite, tree.floats(skeleton))):
            raise WireError(f"{name}: a number is NaN or infinite")

    def _lengths(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, float], set[str]]:
        """The norms of the bounded fields, and the names of tensors that a finite norm shows to be
        finite: their values need no pass of their own, unless they have a range too."""
        lengths: dict[str, float] = {}
        finite: set[str] = set()
        for key in self.norms:
            parts = {k: v for k, v in tensors.items() if k == key or k.startswith(f"{key}.")}
            lengths[key] = _norm(parts.values())
            if math.isfinite(lengths[key]):
                finite |= {k for k in parts if not self.tensors[k].bounded}
        return lengths, finite


def _norm(tensors: Iterable[Tensor]) -> float:
    """The norm of all of them as one vector, in double precision: nothing overflows."""
    norms = (torch.linalg.vector_norm(t, dtype=torch.float64) for t in tensors)
    return math.hypot(*(float(norm) for norm in norms))


def params_specs(task: Task, prefix: str) -> dict[str, TensorSpec]:
    """The model's weights, or anything of their shape, under the field ``prefix``."""
    return {f"{prefix}.{name}": TensorSpec(shape) for name, shape in task.model.shapes.items()}
