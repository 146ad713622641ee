"""Codecs of 1 to 8 bits per number, for sets of images: ``bits4``, ``bits4+zstd``, ...

A pixel is one of 2 ** bits levels between black and white, which the public scaling of the data
fixes: nothing about them is sent. Floating-point numbers that are no pixels have levels between
their smallest and largest, which are sent; so have images of 8 bits of which much would be clipped,
as of those that started from noise. Whole numbers, such as labels, are sent exactly.
The levels are packed, or compressed by zstd (which does better on a byte per level), or coded by
``context.py``. The message around them is that of ``frame.py``: a few bytes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import zstandard
from numpy.typing import NDArray
from torch import Tensor

from fedstill.errors import WireError
from fedstill.wire.compressed import decompressed
from fedstill.wire.context import decode_images, encode_images
from fedstill.wire.levels import from_levels, mostly_outside, to_levels
from fedstill.wire.spec import TensorSpec

Levels = NDArray[np.uint8]

BITS = (8, 4, 3, 2, 1)
_ZSTD_LEVEL = 19  # sets are small: the best compression costs milliseconds
_COSTLIEST = 11  # bits that the context coder may spend on one


class Packing(ABC):
    """How levels, one byte each, become few bytes."""

    @abstractmethod
    def pack(self, levels: Levels, bits: int) -> bytes:
        """The bytes of the levels."""

    @abstractmethod
    def unpack(self, data: bytes, shape: Sequence[int], bits: int) -> Levels:
        """The levels of this shape; refused if there are more, fewer or others."""

    @abstractmethod
    def most(self, numbers: int, bits: int) -> int:
        """The most bytes of so many levels."""


class Packed(Packing):
    """The bits of all levels in a row."""

    def pack(self, levels: Levels, bits: int) -> bytes:
        each = levels.reshape(-1, 1) >> np.arange(bits - 1, -1, -1, dtype=np.uint8) & 1
        return np.packbits(each).tobytes()

    def unpack(self, data: bytes, shape: Sequence[int], bits: int) -> Levels:
        number = math.prod(shape)
        if len(data) != self.most(number, bits):
            raise WireError(f"{len(data):,} bytes for {number:,} numbers of {bits} bits")
        row = np.unpackbits(np.frombuffer(data, np.uint8))
        if row[number * bits :].any():
            raise WireError("bits after the last number")
        each = row[: number * bits].reshape(number, bits).astype(np.uint8)
        values = each << np.arange(bits - 1, -1, -1, dtype=np.uint8)
        found: Levels = values.sum(1, dtype=np.uint8).reshape(tuple(shape))
        return found

    def most(self, numbers: int, bits: int) -> int:
        return math.ceil(numbers * bits / 8)


class Compressed(Packing):
    """A byte for every level, compressed by zstd without the parts that a file would need."""

    def pack(self, levels: Levels, bits: int) -> bytes:
        bare = zstandard.ZstdCompressionParameters.from_level(
            _ZSTD_LEVEL, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_content_size=False
        )
        return zstandard.ZstdCompressor(compression_params=bare).compress(levels.tobytes())

    def unpack(self, data: bytes, shape: Sequence[int], bits: int) -> Levels:
        number = math.prod(shape)
        plain = decompressed(data, number, zstandard.FORMAT_ZSTD1_MAGICLESS)
        if len(plain) != number:
            how = "more" if len(plain) > number else "fewer"
            raise WireError(f"{how} than the {number:,} numbers declared, once decompressed")
        levels = np.frombuffer(plain, np.uint8).reshape(tuple(shape))
        if levels.size and int(levels.max()) >> bits:
            raise WireError(f"a number outside the {1 << bits} levels of {bits} bits")
        return levels

    def most(self, numbers: int, bits: int) -> int:
        return numbers + numbers // 128 + 64  # zstd's own bound is less


class Coded(Packing):
    """Images by the context coder; whatever has another shape is packed."""

    def pack(self, levels: Levels, bits: int) -> bytes:
        return encode_images(levels, bits) if levels.ndim == 4 else Packed().pack(levels, bits)

    def unpack(self, data: bytes, shape: Sequence[int], bits: int) -> Levels:
        if len(shape) != 4:
            return Packed().unpack(data, shape, bits)
        if len(data) > self.most(math.prod(shape), bits):
            raise WireError("more bytes than images of this number and size can have")
        return decode_images(data, shape, bits)

    def most(self, numbers: int, bits: int) -> int:
        return math.ceil(numbers * bits * _COSTLIEST / 8) + 16


@dataclass(frozen=True)
class Bits:
    """Floating-point numbers as levels of so many bits."""

    bits: int
    packing: Packing

    def encode(self, value: Tensor, spec: TensorSpec) -> tuple[bytes, list[float]]:
        """The bytes of a tensor, and the numbers that decoding needs."""
        if spec.levels is not None and not (self.bits == 8 and mostly_outside(value, spec.levels)):
            found = to_levels(value, spec.levels, self.bits)
            return self.packing.pack(found.cpu().numpy(), self.bits), []
        exact = value.double()
        low = float(exact.min()) if value.numel() else 0.0
        highest = (1 << self.bits) - 1
        step = (float(exact.max()) - low) / highest if value.numel() else 0.0
        found = ((exact - low) / (step or 1.0)).round().clamp(0, highest).to(torch.uint8)
        return self.packing.pack(found.cpu().numpy(), self.bits), [low, step]

    def decode(
        self, data: bytes, shape: Sequence[int], spec: TensorSpec, numbers: Sequence[Any]
    ) -> Tensor:
        """The tensor in these bytes; ``shape`` was checked against its declaration."""
        allowed = (0, 2) if self.bits == 8 else (0,)
        if len(numbers) not in (allowed if spec.levels else (2,)):
            raise WireError("the range of the numbers is missing or not needed")
        if not all(type(number) is float for number in numbers):
            raise WireError("the range of the numbers is not one")
        levels = torch.from_numpy(self.packing.unpack(data, shape, self.bits).copy())
        if spec.levels is not None and not numbers:
            return from_levels(levels, spec.levels, self.bits).to(spec.dtype)
        low, step = numbers
        restored: Tensor = levels.double() * step + low
        return restored.to(spec.dtype)

    def most(self, spec: TensorSpec) -> int:
        """The most bytes of a tensor so declared."""
        return self.packing.most(spec.most, self.bits)


_PACKINGS: Mapping[str, Packing] = {"": Packed(), "+zstd": Compressed(), "+context": Coded()}
BIT_CODECS: Mapping[str, Bits] = {
    f"bits{bits}{name}": Bits(bits, packing) for bits in BITS for name, packing in _PACKINGS.items()
}
