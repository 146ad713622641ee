"""A multilayer perceptron."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor

from fedstill.models.layers import ACTIVATIONS, Activation, init_affine, named
from fedstill.models.model import Model, Searched
from fedstill.types import Params


@dataclass(frozen=True)
class MLP(Model):
    """``depth`` hidden layers of ``width`` units over the flattened input."""

    shape: tuple[int, ...]
    classes: int
    width: Annotated[int, Meta(ge=1)] = 200
    depth: Annotated[int, Meta(ge=0)] = 2
    activation: Activation = "relu"

    @classmethod
    def search_space(cls, shape: tuple[int, ...]) -> Mapping[str, Searched]:
        return {
            "width": (32, 64, 128, 256),
            "depth": range(4),
            "activation": ("relu", "leaky-relu", "gelu"),
        }

    @property
    def chunk(self) -> int:
        return 1024

    def init(self, generator: torch.Generator) -> Params:
        params: Params = {}
        units = math.prod(self.shape)
        for layer in range(self.depth):
            params |= named(f"hidden{layer}", init_affine(generator, (self.width, units)))
            units = self.width
        return params | named("linear", init_affine(generator, (self.classes, units)))

    def features(self, params: Params, x: Tensor) -> tuple[Tensor, ...]:
        x = x.flatten(1)
        outputs = [] if self.depth else [x]
        for layer in range(self.depth):
            x = F.linear(x, params[f"hidden{layer}.weight"], params[f"hidden{layer}.bias"])
            x = ACTIVATIONS[self.activation](x)
            outputs.append(x)
        return (*outputs, F.linear(x, params["linear.weight"], params["linear.bias"]))
