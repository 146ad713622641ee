"""What a message must look like: a method declares it, and both sides check against it."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor

from fedstill.errors import WireError
from fedstill.types import Task
from fedstill.wire import tree
from fedstill.wire.codecs import find_codec, short_name

M = TypeVar("M")
# Lowest and highest value of a number, and the setting to change where an honest one exceeds them.
Range = tuple[float, float] | tuple[float, float, str]

_HEADER_BYTES = 4096  # room for the header, and for each entry of it
_HEADER_BYTES_PER_TENSOR = 512


@dataclass(frozen=True)
class TensorSpec:
    """A tensor's declared shape, type and range. A dimension given as a pair is (least, most).

    ``setting`` is the one that an honest user raises where values exceed the range.
    """

    shape: tuple[int | tuple[int, int], ...]
    dtype: torch.dtype = torch.float32
    low: float = -math.inf
    high: float = math.inf
    setting: str = ""

    @property
    def most(self) -> int:
        """The largest number of elements."""
        return math.prod(d if isinstance(d, int) else d[1] for d in self.shape)

    def complaint(self, value: Tensor) -> str | None:
        """What is wrong with this tensor, if anything."""
        if value.dtype != self.dtype:
            return f"has type {short_name(value.dtype)}, declared {short_name(self.dtype)}"
        fits = len(value.shape) == len(self.shape) and all(
            low <= size <= high
            for size, (low, high) in zip(
                value.shape,
                ((d, d) if isinstance(d, int) else d for d in self.shape),
                strict=True,
            )
        )
        if not fits:
            return f"has shape {tuple(value.shape)}, declared {self.shape}"
        if not bool(torch.isfinite(value).all()):
            return "holds NaN or infinity"
        if value.numel() and (value.min() < self.low or value.max() > self.high):
            return f"has values outside {self.low:g} .. {self.high:g}{_remedy(self.setting)}"
        return None


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
        coded = find_codec(codec).itemsize
        return sum(
            s.most * (coded if s.dtype.is_floating_point else s.dtype.itemsize)
            for s in self.tensors.values()
        )

    def limit(self, codec: str) -> int:
        """The most bytes a message may have, header included."""
        header = _HEADER_BYTES + _HEADER_BYTES_PER_TENSOR * len(self.tensors)
        return self.payload(codec) + header

    def check(self, message: M) -> None:
        """Refuse a message that is not as declared."""
        tensors, skeleton = tree.flatten(message)
        name = self.type.__name__
        if set(tensors) != set(self.tensors):
            odd = sorted(set(tensors) ^ set(self.tensors))[0]
            problem = "is missing" if odd in self.tensors else "was not declared"
            raise WireError(f"{name}: tensor '{odd}' {problem}")
        for key, value in tensors.items():
            complaint = self.tensors[key].complaint(value)
            if complaint:
                raise WireError(f"{name}: '{key}' {complaint}")
        for key, (low, high, *setting) in self.numbers.items():
            number = skeleton[key]
            if not low <= number <= high:
                remedy = _remedy("".join(setting))
                raise WireError(
                    f"{name}: '{key}' is {number}, declared {low:g} .. {high:g}{remedy}"
                )
        if not all(map(math.isfinite, tree.floats(skeleton))):
            raise WireError(f"{name}: a number is NaN or infinite")
        for key, limit in self.norms.items():
            length = _norm(v for k, v in tensors.items() if k == key or k.startswith(f"{key}."))
            if length > limit.most:
                raise WireError(
                    f"{name}: '{key}' has norm {length:.3g}, at most {limit.most:g} is declared"
                    f"{_remedy(limit.setting)}"
                )


def _norm(tensors: Iterable[Tensor]) -> float:
    """The norm of all of them as one vector, in double precision: nothing overflows."""
    norms = (torch.linalg.vector_norm(t, dtype=torch.float64) for t in tensors)
    return math.hypot(*(float(norm) for norm in norms))


def _remedy(setting: str) -> str:
    return f"; if that is right, raise {setting}" if setting else ""


def params_specs(task: Task, prefix: str) -> dict[str, TensorSpec]:
    """The model's weights, or anything of their shape, under the field ``prefix``."""
    return {f"{prefix}.{name}": TensorSpec(shape) for name, shape in task.model.shapes.items()}
