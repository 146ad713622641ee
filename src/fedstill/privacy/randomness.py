"""The source of noise and samples.

The guarantee holds against anyone who cannot predict the noise. A seeded generator is not enough:
the seed is in the configuration, and the state of a Mersenne Twister can be recovered from its
output. So every draw uses new bytes of the operating system's generator, and none is stored.
``Replayed`` draws from the experiment's named streams instead: for tests, never for protection.
"""

import os
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstill.rng import Rng


class Randomness(Protocol):
    """Draws in double precision, on the CPU. ``access`` is the number of the access."""

    def uniform(self, access: int, number: int) -> Tensor:
        """``number`` uniform numbers in 0 <= u < 1."""
        ...

    def normal(self, access: int, number: int) -> Tensor:
        """``number`` standard normal numbers."""
        ...


@dataclass(frozen=True)
class OperatingSystem:
    """New bytes of the operating system's generator for every draw."""

    def uniform(self, access: int, number: int) -> Tensor:
        return torch.from_numpy(_uniform(number))

    def normal(self, access: int, number: int) -> Tensor:
        """Box and Muller's transform of uniform numbers with 53 bits (it ends at 8.5 sigma)."""
        half = (number + 1) // 2
        radius = np.sqrt(-2.0 * np.log(1.0 - _uniform(half)))  # 1 - u is never 0
        angle = 2.0 * np.pi * _uniform(half)
        pairs = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        return torch.from_numpy(pairs[:number])


@dataclass(frozen=True)
class Replayed:
    """The experiment's named streams: the same seed, the same noise. This protects nobody."""

    rng: Rng

    def uniform(self, access: int, number: int) -> Tensor:
        generator = self.rng.at("private", access, "sample").torch()
        return torch.rand(number, generator=generator, dtype=torch.float64)

    def normal(self, access: int, number: int) -> Tensor:
        generator = self.rng.at("private", access, "noise").torch()
        return torch.randn(number, generator=generator, dtype=torch.float64)


def _uniform(number: int) -> NDArray[np.float64]:
    words = np.frombuffer(os.urandom(8 * number), dtype="<u8")
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
