"""ResNet-18 in its form for small images: 3x3 stem, no max-pooling, and no batch norm."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor

from fedstill.errors import RequestError
from fedstill.models.layers import init_affine, init_norm, named, normalise
from fedstill.models.model import Model, Searched
from fedstill.types import Params

_STAGES = 4
_BLOCKS_PER_STAGE = 2


@dataclass(frozen=True)
class ResNet18(Model):
    """He et al. 2016. Group or instance norm: batch norm would mix records (docs/privacy.md)."""

    shape: tuple[int, ...]
    classes: int
    width: Annotated[int, Meta(ge=1)] = 64
    norm: Literal["instance", "group"] = "group"

    def __post_init__(self) -> None:
        if len(self.shape) != 3:
            raise RequestError(
                f"model: ResNet-18 needs images, not inputs of shape {self.shape}; use mlp"
            )

    @classmethod
    def search_space(cls, shape: tuple[int, ...]) -> Mapping[str, Searched]:
        if len(shape) != 3 or min(shape[1:]) < 2:  # not images
            return {}
        # Of 8x8 pixels the last stage has one per channel: instance norm would be 0.
        norms = ("group",) if min(shape[1:]) <= 8 else ("group", "instance")
        return {"width": (4, 8, 16), "norm": norms}

    @property
    def chunk(self) -> int:
        return max(1, min(256, 16 * 64 * 32 * 32 // (self.width * self.shape[1] * self.shape[2])))

    def init(self, generator: torch.Generator) -> Params:
        def convolution(name: str, channels_out: int, channels_in: int, size: int) -> Params:
            weights = init_affine(generator, (channels_out, channels_in, size, size), bias=False)
            norm = init_norm(channels_out, self.norm)
            return named(f"{name}.conv", weights) | named(f"{name}.norm", norm)

        params = convolution("stem", self.width, self.shape[0], 3)
        channels = self.width
        for name, width, stride in self._blocks():
            params |= convolution(f"{name}.first", width, channels, 3)
            params |= convolution(f"{name}.second", width, width, 3)
            if stride != 1 or width != channels:
                params |= convolution(f"{name}.shortcut", width, channels, 1)
            channels = width
        return params | named("linear", init_affine(generator, (self.classes, channels)))

    def features(self, params: Params, x: Tensor) -> tuple[Tensor, ...]:
        def convolution(name: str, x: Tensor, stride: int = 1) -> Tensor:
            weight = params[f"{name}.conv.weight"]
            x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
            return normalise(params, f"{name}.norm", x, self.norm)

        outputs: list[Tensor] = []
        x = F.relu(convolution("stem", x))
        for name, _, stride in self._blocks():
            out = convolution(f"{name}.second", F.relu(convolution(f"{name}.first", x, stride)))
            if f"{name}.shortcut.conv.weight" in params:
                x = convolution(f"{name}.shortcut", x, stride)
            x = F.relu(out + x)
            if name.endswith(f"block{_BLOCKS_PER_STAGE - 1}"):
                outputs.append(x)
        pooled = x.mean(dim=(2, 3))
        logits = F.linear(pooled, params["linear.weight"], params["linear.bias"])
        return (*outputs, pooled, logits)

    def _blocks(self) -> list[tuple[str, int, int]]:
        """Name, width and stride of every residual block."""
        return [
            (f"stage{stage}.block{block}", self.width << stage, 2 if stage and not block else 1)
            for stage in range(_STAGES)
            for block in range(_BLOCKS_PER_STAGE)
        ]
