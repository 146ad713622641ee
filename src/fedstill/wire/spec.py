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

    def _allows(self, shape: tuple[int, ...]) -> bool:
        """Whether every dimension is within what is declared."""
        declared = ((d, d) if isinstance(d, int) else d for d in self.shape)
        return len(shape) == len(self.shape) and all(
            low <= size <= high for size, (low, high) in zip(shape, declared, strict=True)
        )

    @property
    def bounded(self) -> bool:
        """Whether its values have a declared range."""
        return self.low > -math.inf or self.high < math.inf

    def complaint(self, value: Tensor) -> str | None:
        """What is wrong with this tensor, if anything."""
        return self.form_complaint(value) or self.value_complaint(value)

    def form_complaint(self, value: Tensor) -> str | None:
        """What is wrong with this tensor's type and shape, if anything."""
        if value.dtype != self.dtype:
            return f"has type {short_name(value.dtype)}, declared {short_name(self.dtype)}"
        if value.shape != self.shape and not self._allows(value.shape):
            return f"has shape {tuple(value.shape)}, declared {self.shape}"
        return None

    def value_complaint(self, value: Tensor) -> str | None:
        """What is wrong with this tensor's values, if anything."""
        if not value.numel():
            return None
        # One pass: NaN and infinity show in the smallest or the largest value.
        least, most = value.detach().aminmax()
        if not (math.isfinite(least) and math.isfinite(most)):
            return "holds NaN or infinity"
        # As tensors: a bound is rounded as values are, and a value at the bound is within it.
        if least < self.low or most > self.high:
            return f"has values outside {self.low:g} .. {self.high:g}{remedy_of(self.setting)}"
        return None


def remedy_of(setting: str) -> str:
    """What to do where an honest value exceeds its bound."""
    return f"; if that is right, raise {setting}" if setting else ""


def short_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")
