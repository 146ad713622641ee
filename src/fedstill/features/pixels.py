"""The inputs themselves: pixels, or the numbers of a table."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstill.features.base import FeatureMap, unit


@dataclass(frozen=True)
class Pixels(FeatureMap):
    """All numbers of an input, and a constant, as one vector of norm 1.

    The constant keeps what the division by the norm would lose: the size of an input's numbers.
    """

    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape) + 1

    def __call__(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        constant = torch.full_like(flat[:, :1], math.sqrt(flat.shape[1]))
        return unit(torch.cat([flat, constant], 1))
