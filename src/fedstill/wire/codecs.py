"""Codecs: how the floating-point tensors of a message become bytes. One object per codec.

``float32`` is exact, ``float16`` rounds, ``uint8`` stores each tensor as 256 steps between its
smallest and largest value. Each of them may be followed by ``+zstd``. Labels and counts are not
floating-point numbers: they are sent unchanged. ``bits.py`` has the codecs of few bits for images.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import zstandard
from torch import Tensor

from fedstill.errors import RequestError, WireError, did_you_mean
from fedstill.wire.bits import BIT_CODECS, Bits
from fedstill.wire.compressed import decompressed
from fedstill.wire.spec import TensorSpec, short_name


class Codec(ABC):
    """One encoding of floating-point tensors.

    ``encode`` returns the tensor to send and, if decoding needs them, numbers for the header.
    """

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The type of the encoded tensor."""

    @property
    def exact(self) -> bool:
        """Whether single precision is sent as it is, so that a message is a file of its tensors."""
        return False

    def most(self, spec: TensorSpec) -> int:
        """The most bytes of a tensor so declared, before compression."""
        return spec.most * self.dtype.itemsize

    @abstractmethod
    def encode(self, name: str, value: Tensor) -> tuple[Tensor, tuple[float, ...] | None]:
        """The tensor to send, and its numbers for the header."""

    @abstractmethod
    def decode(self, name: str, value: Tensor, header: Any, dtype: torch.dtype) -> Tensor:
        """The tensor that was encoded; ``header`` is whatever a peer wrote there, or ``None``."""

    def pack(self, data: bytes) -> bytes:
        """The bytes of the whole message."""
        return data

    def unpack(self, data: bytes, limit: int) -> bytes:
        """The bytes that were packed, refused if there are more than ``limit``."""
        return data


@dataclass(frozen=True)
class Cast(Codec):
    """Every number as this floating-point type."""

    to: torch.dtype

    @property
    def dtype(self) -> torch.dtype:
        return self.to

    @property
    def exact(self) -> bool:
        return self.to is torch.float32

    def encode(self, name: str, value: Tensor) -> tuple[Tensor, None]:
        if value.dtype == self.to:  # finite: it was checked before
            return value, None
        coded = value.to(self.to)
        if not bool(torch.isfinite(coded).all()):
            raise WireError(f"'{name}' has values too large for the codec {short_name(self.to)}")
        return coded, None

    def decode(self, name: str, value: Tensor, header: Any, dtype: torch.dtype) -> Tensor:
        return value.to(dtype)


@dataclass(frozen=True)
class Quantised(Codec):
    """Every tensor as 256 steps between its smallest and largest value."""

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8

    def encode(self, name: str, value: Tensor) -> tuple[Tensor, tuple[float, float]]:
        if not value.numel():
            return value.to(torch.uint8), (0.0, 0.0)
        exact = value.double()
        low = float(exact.min())
        step = (float(exact.max()) - low) / 255.0
        if step == 0.0:
            return torch.zeros_like(value, dtype=torch.uint8), (low, 0.0)
        return ((exact - low) / step).round().to(torch.uint8), (low, step)

    def decode(self, name: str, value: Tensor, header: Any, dtype: torch.dtype) -> Tensor:
        if header is None:
            raise WireError(f"'{name}' has no range for the codec uint8")
        low, step = header
        if type(low) not in (int, float) or type(step) not in (int, float):
            raise WireError(f"'{name}' has no range for the codec uint8")
        restored: Tensor = value.double() * step + low
        return restored.to(dtype)


@dataclass(frozen=True)
class Zstd(Codec):
    """Another codec, its message compressed as a whole."""

    inner: Codec

    @property
    def dtype(self) -> torch.dtype:
        return self.inner.dtype

    @property
    def exact(self) -> bool:
        return self.inner.exact

    def encode(self, name: str, value: Tensor) -> tuple[Tensor, tuple[float, ...] | None]:
        return self.inner.encode(name, value)

    def decode(self, name: str, value: Tensor, header: Any, dtype: torch.dtype) -> Tensor:
        return self.inner.decode(name, value, header, dtype)

    def pack(self, data: bytes) -> bytes:
        return zstandard.ZstdCompressor().compress(self.inner.pack(data))

    def unpack(self, data: bytes, limit: int) -> bytes:
        """At most ``limit`` bytes, whatever the frame claims: it may be a decompression bomb."""
        plain = decompressed(data, limit)
        if len(plain) > limit:
            raise WireError(f"more than the {limit:,} bytes declared, once decompressed")
        return self.inner.unpack(plain, limit)


_PLAIN: Mapping[str, Codec] = {
    "float32": Cast(torch.float32),
    "float16": Cast(torch.float16),
    "uint8": Quantised(),
}
CODECS: Mapping[str, Codec | Bits] = {
    **_PLAIN,
    **{f"{name}+zstd": Zstd(codec) for name, codec in _PLAIN.items()},
    **BIT_CODECS,
}


def pixel_bits(name: str) -> int | None:
    """The bits per pixel of a codec with fixed levels; ``None`` of any other."""
    return BIT_CODECS[name].bits if name in BIT_CODECS else None


def find_codec(name: str, key: str = "codec") -> Codec | Bits:
    """The codec called ``name``; ``key`` is the setting that asked for it."""
    if name not in CODECS:
        raise RequestError(f"{key}: no codec '{name}'{did_you_mean(name, CODECS)}")
    return CODECS[name]
