"""Features of random convolutional networks, drawn from a named stream that all sides know."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, instance_norm

from fedstill.features.base import FeatureMap, unit
from fedstill.features.orientation import check_images
from fedstill.rng import Rng

_WIDTH = 32


@dataclass(frozen=True)
class RandomNetworks(FeatureMap):
    """The last outputs of a few untrained networks: convolution, instance norm, ReLU, pooling."""

    shape: tuple[int, ...]
    seed: int = 0
    networks: int = 2

    def __post_init__(self) -> None:
        check_images(self.shape, "random")

    @property
    def depth(self) -> int:
        """Blocks: each halves the image, and at least 2x2 pixels are left."""
        return min(3, min(self.shape[1:]).bit_length() - 2)

    @property
    def size(self) -> int:
        height, width = (side >> self.depth for side in self.shape[1:])
        return self.networks * _WIDTH * height * width

    @cached_property
    def _filters(self) -> list[list[Tensor]]:
        def drawn(network: int, block: int) -> Tensor:
            channels = self.shape[0] if block == 0 else _WIDTH
            generator = Rng(self.seed).at("random features", network, block).torch()
            filters = torch.randn(_WIDTH, channels, 3, 3, generator=generator)
            return filters / math.sqrt(9 * channels)

        return [[drawn(n, b) for b in range(self.depth)] for n in range(self.networks)]

    def __call__(self, x: Tensor) -> Tensor:
        vectors = []
        for filters in self._filters:
            out = x
            for weights in filters:
                out = instance_norm(conv2d(out, weights.to(out), padding=1))
                out = avg_pool2d(out.relu(), 2)
            vectors.append(unit(out.flatten(1)))
        return unit(torch.cat(vectors, 1))

    @property
    def chunk(self) -> int:
        return 16
