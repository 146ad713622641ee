"""What one tensor of a message must look like."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstill.scaling import Scaling


@dataclass(frozen=True)
class TensorSpec:
    """A tensor's declared shape, type and range. A dimension given as a pair is (least, most).

    ``setting`` is the one that an honest user raises where values exceed the range. ``levels``:
    these are images [n, channels, ...] of data with this scaling, which codecs of few bits use.
    """

    shape: tuple[int | tuple[int, int], ...]
    dtype: torch.dtype = torch.float32
    low: float = -math.inf
    high: float = math.inf
    setting: str = ""
    levels: Scaling | None = None

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
            return f"has values outside {self.low:g} .. {self.high:g}{remedy_of(self.setting)}"
        return None


def remedy_of(setting: str) -> str:
    """What to do where an honest value exceeds its bound."""
    return f"; if that is right, raise {setting}" if setting else ""


def short_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")
