"""The ConvNet of the dataset-distillation papers.

``depth`` blocks of [3x3 convolution, norm, activation, 2x2 pooling], then one linear layer.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor

from fedstill.errors import RequestError
from fedstill.models.kernels import winograd
from fedstill.models.kernels.blocks import Blocks
from fedstill.models.kernels.derivatives import Form
from fedstill.models.kernels.library import in_use, kernel_for
from fedstill.models.layers import (
    ACTIVATIONS,
    POOLINGS,
    Activation,
    Norm,
    Pooling,
    init_affine,
    init_norm,
    named,
    normalise,
)
from fedstill.models.model import Forward, Model, Searched
from fedstill.types import Params

# Measured: chunks of 8 to 16 images of 32x32 are the fastest, at width 32 and at width 128.
_CHUNK_PIXELS = 16 * 32 * 32
_MOST_LEFT, _DEEPEST = 8, 6
_WINOGRAD_WIDTH = 64  # measured: below it, plain convolutions are faster
# The compiled kernel's: width 32 gains by it on digits (28x28, padded to 32x32) and nowhere else.
_NATIVE_WIDTH, _NATIVE_PIXELS = 32, 32 * 32
# Derivatives that are written out, by order: the least width, and the least width times records.
# Measured: below, autograd is as fast. Their chunks are larger: 32 images of 32x32 at width 128.
_WRITTEN_OUT = {1: (32, 1024), 2: (16, 256)}
_MOST_POSITIONS, _MOST_OUTPUTS = 64 * 32 * 32, 2**22


@dataclass(frozen=True)
class ConvNet(Model):
    """The papers' network: with width 128 it has 317,706 weights on 28x28 digits."""

    shape: tuple[int, ...]
    classes: int
    width: Annotated[int, Meta(ge=1)] = 128
    depth: Annotated[int, Meta(ge=1, le=6)] | None = None  # None: as the image's size suggests
    norm: Norm = "instance"
    activation: Activation = "relu"
    pooling: Pooling = "average"

    def __post_init__(self) -> None:
        if len(self.shape) != 3:
            raise RequestError(
                f"model: a ConvNet needs images, not inputs of shape {self.shape}; use mlp"
            )
        if min(self._sides) < 1:
            raise RequestError(
                f"model.depth: {self.depth} blocks halve a {self.shape[1]}x{self.shape[2]} image "
                "to nothing; use fewer"
            )

    @classmethod
    def search_space(cls, shape: tuple[int, ...]) -> Mapping[str, Searched]:
        if len(shape) != 3 or min(shape[1:]) < 2:  # not images
            return {}
        return {
            "width": (8, 16, 32, 64),
            "depth": range(1, min(4, min(shape[1:]).bit_length() - 1) + 1),
            "norm": ("instance", "group", "none"),
            "activation": ("relu", "leaky-relu", "gelu"),
            "pooling": ("average", "max"),
        }

    @property
    def blocks(self) -> int:
        """The depth; if it is not set, 3, or fewer to leave at least 2x2 pixels, or more to leave
        at most 8x8: otherwise the last layer would have most of the weights."""
        if self.depth is not None:
            return self.depth
        smallest = min(self.shape[1:])
        deep = min(_DEEPEST, math.ceil(math.log2(smallest / _MOST_LEFT)))
        return max(1, min(max(3, deep), smallest.bit_length() - 2))

    @property
    def _first_padding(self) -> int:
        return 3 if tuple(self.shape[1:]) == (28, 28) else 1  # 28x28 becomes 32x32

    @property
    def _sides(self) -> tuple[int, int]:
        grow = 2 * self._first_padding - 2
        height, width = (side + grow >> self.blocks for side in self.shape[1:])
        return height, width

    @property
    def chunk(self) -> int:
        return max(1, min(256, _CHUNK_PIXELS // self._pixels))

    @property
    def record_chunk(self) -> int:
        return 2 * self.chunk  # measured: a tenth faster at width 32, as fast at 128

    @property
    def _pixels(self) -> int:
        """Positions of the first convolution's output."""
        grow = 2 * self._first_padding - 2
        return (self.shape[1] + grow) * (self.shape[2] + grow)

    def init(self, generator: torch.Generator) -> Params:
        params: Params = {}
        channels = self.shape[0]
        for block in range(self.blocks):
            convolution = init_affine(generator, (self.width, channels, 3, 3))
            params |= named(f"block{block}.conv", convolution)
            params |= named(f"block{block}.norm", init_norm(self.width, self.norm))
            channels = self.width
        height, width = self._sides
        return params | named(
            "linear", init_affine(generator, (self.classes, channels * height * width))
        )

    def features(self, params: Params, x: Tensor) -> tuple[Tensor, ...]:
        activate, pool = ACTIVATIONS[self.activation], POOLINGS[self.pooling]
        outputs: list[Tensor] = []
        for block in range(self.blocks):
            name = f"block{block}"
            # An instance norm removes a constant per channel: the bias stays among the weights (the
            # published counts include it) but need not be added.
            bias = None if self.norm == "instance" else params[f"{name}.conv.bias"]
            padding = self._first_padding if block == 0 else 1
            x = F.conv2d(x, params[f"{name}.conv.weight"], bias, padding=padding)
            x = pool(activate(normalise(params, f"{name}.norm", x, self.norm)))
            outputs.append(x)
        logits = F.linear(x.flatten(1), params["linear.weight"], params["linear.bias"])
        return (*outputs, logits)

    def inference(self, params: Params, x: Tensor) -> tuple[Tensor, ...]:
        return self.inference_by(params, self.blocks + 1)(x)

    def inference_by(self, params: Params, last: int) -> Forward:
        if not self._has_kernel(params):
            return lambda x: self.features(params, x)[-last:]
        blocks = self._fast_blocks(params)
        return lambda x: self._with_logits(params, blocks.outputs(x, max(1, last - 1)), last)

    def pixel_features_by(self, params: Params, last: int) -> Forward:
        if not self._has_kernel(params):
            return super().pixel_features_by(params, last)
        blocks = self._fast_blocks(params, backward=True)
        return lambda x: self._with_logits(params, blocks.differentiable(x, max(1, last - 1)), last)

    @torch.no_grad()
    def _fast_blocks(self, params: Params, *, backward: bool = False) -> Blocks:
        padding, weight = self._first_padding, params["block0.conv.weight"]
        height, width = (side + 2 * padding - 2 >> 1 for side in self.shape[1:])
        kernel = kernel_for(weight, height * width)
        return Blocks(kernel, params, self.blocks, padding, backward=backward)

    def _with_logits(
        self, params: Params, outputs: tuple[Tensor, ...], last: int
    ) -> tuple[Tensor, ...]:
        flat = outputs[-1].flatten(1)
        logits = F.linear(flat, params["linear.weight"], params["linear.bias"])
        return (*outputs, logits)[-last:]

    def _has_kernel(self, params: Params) -> bool:
        return self.fast_inference and params["linear.weight"].device.type == "cpu"

    def written_out(self, records: int, order: int) -> Form | None:
        narrowest, least = _WRITTEN_OUT[order]
        if self.width < narrowest or records * self.width < least or not self._in_tiles:
            return None
        size = max(1, min(_MOST_POSITIONS, _MOST_OUTPUTS // self.width) // self._pixels)
        return Form(self.blocks, self._first_padding, self._sides, size)

    @property
    def fast_inference(self) -> bool:
        """Winograd's: for the papers' network at width 64 or more, on images of whole tiles; by the
        compiled kernel also at width 32, on grey images that are not small."""
        if not self._in_tiles or self.width < _NATIVE_WIDTH:
            return False
        digits = self.shape[0] == 1 and self._pixels >= _NATIVE_PIXELS
        return self.width >= _WINOGRAD_WIDTH or (digits and in_use())

    @property
    def _in_tiles(self) -> bool:
        """Whether this is the papers' network on images of whole tiles."""
        if (self.norm, self.activation, self.pooling) != ("instance", "relu", "average"):
            return False
        grow = 2 * self._first_padding - 2
        inputs = [
            side + grow >> block for side in self.shape[1:] for block in range(1, self.blocks)
        ]
        even = all((side + grow) % 2 == 0 for side in self.shape[1:])
        return even and all(side % winograd.TILE == 0 for side in inputs)
