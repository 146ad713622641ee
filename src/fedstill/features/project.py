"""A random projection behind a feature map: shorter vectors, hence fewer statistics."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedstill.features.base import FeatureMap, unit
from fedstill.rng import Rng


@dataclass(frozen=True)
class Projected(FeatureMap):
    """The vectors of another map, projected to ``size`` random directions of norm 1."""

    inner: FeatureMap
    directions: int
    seed: int = 0

    @property
    def size(self) -> int:
        return self.directions

    @property
    def chunk(self) -> int:
        return self.inner.chunk

    @cached_property
    def _matrix(self) -> Tensor:
        generator = Rng(self.seed).at("projection").torch()
        drawn = torch.randn(self.inner.size, self.directions, generator=generator)
        return drawn / math.sqrt(self.directions)

    def __call__(self, x: Tensor) -> Tensor:
        vectors = self.inner(x)
        return unit(vectors @ self._matrix.to(vectors))
