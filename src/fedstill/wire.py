"""Messages as bytes, checked at the door and counted to the byte.

Every message, on every engine, passes through ``encode`` and ``decode``. A method declares what
its messages look like (a ``Schema``); whatever differs from that is refused before a single
number of it reaches the model: wrong names, shapes, types, values out of range, NaN and
infinity, and anything larger than the declaration allows.

Codecs: ``float32`` (exact), ``float16``, ``uint8`` (each tensor as 256 steps between its
smallest and largest value), and each of them with ``+zstd``. Only floating-point tensors are
coded; labels and counts travel as they are.
"""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
import zstandard
from torch import Tensor

from fedstill import tree
from fedstill.errors import RequestError, WireError, did_you_mean
from fedstill.types import Task

M = TypeVar("M")

CODECS = ("float32", "float16", "uint8", "float32+zstd", "float16+zstd", "uint8+zstd")
_WIRE_TYPE = {"float32": torch.float32, "float16": torch.float16, "uint8": torch.uint8}
_HEADER_BYTES = 4096  # room for the header, and for each entry of it
_HEADER_BYTES_A_TENSOR = 512


@dataclass(frozen=True)
class TensorSpec:
    """A tensor's declared shape, type and range. A dimension given as a pair is (least, most)."""

    shape: tuple[int | tuple[int, int], ...]
    dtype: torch.dtype = torch.float32
    low: float = -math.inf
    high: float = math.inf

    @property
    def most(self) -> int:
        """The largest number of elements."""
        return math.prod(d if isinstance(d, int) else d[1] for d in self.shape)

    def complaint(self, value: Tensor) -> str | None:
        """What is wrong with this tensor, if anything."""
        if value.dtype != self.dtype:
            return f"has type {_short(value.dtype)}, declared {_short(self.dtype)}"
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
            return f"has values outside {self.low:g} .. {self.high:g}"
        return None


@dataclass(frozen=True)
class Schema(Generic[M]):
    """What a message must look like: its type, its tensors by dotted name, its numbers."""

    type: type[M]
    tensors: Mapping[str, TensorSpec] = field(default_factory=dict)
    numbers: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def payload(self, codec: str) -> int:
        """The most bytes that the tensors themselves may take."""
        coded = _WIRE_TYPE[_base(codec)].itemsize
        return sum(
            s.most * (coded if s.dtype.is_floating_point else s.dtype.itemsize)
            for s in self.tensors.values()
        )

    def limit(self, codec: str) -> int:
        """The most bytes a message may have, header included."""
        header = _HEADER_BYTES + _HEADER_BYTES_A_TENSOR * len(self.tensors)
        return self.payload(codec) + header

    def check(self, message: M) -> None:
        """Refuse a message that is not as declared."""
        tensors, skeleton = tree.flatten(message)
        name = self.type.__name__
        if set(tensors) != set(self.tensors):
            odd = sorted(set(tensors) ^ set(self.tensors))[0]
            word = "is missing" if odd in self.tensors else "was not declared"
            raise WireError(f"{name}: tensor '{odd}' {word}")
        for key, value in tensors.items():
            complaint = self.tensors[key].complaint(value)
            if complaint:
                raise WireError(f"{name}: '{key}' {complaint}")
        for key, (low, high) in self.numbers.items():
            number = skeleton[key]
            if not low <= number <= high:
                raise WireError(f"{name}: '{key}' is {number}, declared {low:g} .. {high:g}")


def params_specs(task: Task, prefix: str) -> dict[str, TensorSpec]:
    """The model's weights, or anything of their shape, under the field ``prefix``."""
    return {f"{prefix}.{name}": TensorSpec(shape) for name, shape in task.model.shapes.items()}


def check_codec(codec: str, key: str) -> None:
    """Refuse a codec that does not exist."""
    if codec not in CODECS:
        raise RequestError(f"{key}: no codec '{codec}'{did_you_mean(codec, CODECS)}")


def encode(message: Any, schema: Schema[Any], codec: str = "float32") -> bytes:
    """The message's bytes. What its own method did not declare is refused here already."""
    schema.check(message)
    tensors, skeleton = tree.flatten(message)
    ranges: dict[str, tuple[float, float]] = {}
    coded: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if not value.dtype.is_floating_point:
            coded[name] = value
        elif _base(codec) == "uint8":
            coded[name], ranges[name] = _quantise(value)
        else:
            coded[name] = value.to(_WIRE_TYPE[_base(codec)])
            if not bool(torch.isfinite(coded[name]).all()):
                raise WireError(f"'{name}' has values too large for the codec {codec}")
    header: dict[str, Any] = {"skeleton": skeleton}
    if ranges:
        header["ranges"] = ranges
    data = tree.pack(coded, header)
    return zstandard.ZstdCompressor().compress(data) if codec.endswith("+zstd") else data


def decode(
    data: bytes,
    schema: Schema[M],
    codec: str = "float32",
    device: torch.device | str = "cpu",
) -> M:
    """The message in these bytes, or a ``WireError`` that says what is wrong with it."""
    limit = schema.limit(codec)
    if len(data) > limit:
        raise WireError(f"{len(data):,} bytes, at most {limit:,} declared")
    if codec.endswith("+zstd"):
        data = _decompress(data, limit)
    try:
        tensors, header = tree.unpack(data)
        if undeclared := sorted(set(tensors) - set(schema.tensors)):
            raise WireError(f"{schema.type.__name__}: tensor '{undeclared[0]}' was not declared")
        ranges = header.get("ranges", {})
        if not isinstance(ranges, dict):
            raise WireError("the ranges of the codec are not a table")
        for name, spec in schema.tensors.items():
            if name in tensors and spec.dtype.is_floating_point:
                tensors[name] = _restore(name, tensors[name], spec, codec, ranges)
        on_device = tree.to_device(tensors, device)
        message: M = tree.build(schema.type, on_device, header.get("skeleton"))
    except tree.MalformedError as error:
        raise WireError(str(error)) from error
    except (TypeError, ValueError, RuntimeError, OverflowError, AttributeError) as error:
        raise WireError(f"malformed message: {error}") from error
    schema.check(message)
    return message


def _quantise(value: Tensor) -> tuple[Tensor, tuple[float, float]]:
    if not value.numel():
        return value.to(torch.uint8), (0.0, 0.0)
    exact = value.double()
    low = float(exact.min())
    step = (float(exact.max()) - low) / 255.0
    if step == 0.0:
        return torch.zeros_like(value, dtype=torch.uint8), (low, 0.0)
    return ((exact - low) / step).round().to(torch.uint8), (low, step)


def _restore(
    name: str, value: Tensor, spec: TensorSpec, codec: str, ranges: Mapping[str, Any]
) -> Tensor:
    wire_type = _WIRE_TYPE[_base(codec)]
    if value.dtype != wire_type:
        raise WireError(f"'{name}' came as {_short(value.dtype)}, the codec is {codec}")
    if wire_type != torch.uint8:
        return value.to(spec.dtype)
    low, step = ranges.get(name, (None, None))
    if type(low) not in (int, float) or type(step) not in (int, float):
        raise WireError(f"'{name}' has no range for the codec {codec}")
    restored: Tensor = value.double() * step + low
    return restored.to(spec.dtype)


def _decompress(data: bytes, limit: int) -> bytes:
    """At most ``limit`` bytes, whatever size the frame claims: a bomb must not go off."""
    try:
        source = io.BytesIO(data)
        decompressor = zstandard.ZstdDecompressor(max_window_size=2**27)
        with decompressor.stream_reader(source, closefd=False, read_across_frames=True) as reader:
            plain = reader.read(limit + 1)
    except zstandard.ZstdError as error:
        raise WireError(f"not a zstd message: {error}") from error
    if len(plain) > limit:
        raise WireError(f"more than the {limit:,} bytes declared, once decompressed")
    return plain


def _base(codec: str) -> str:
    return codec.removesuffix("+zstd")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
