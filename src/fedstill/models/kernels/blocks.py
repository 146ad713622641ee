"""Blocks of [3x3 convolution, instance norm, ReLU, 2x2 average pooling] on a processor.

The forward pass of the papers' ConvNet, and the gradient of its outputs with respect to the images
alone: distribution matching needs no gradient of the weights. All blocks but the first convolve by
Winograd's algorithm (:mod:`fedstill.models.kernels.winograd`), backwards too: the gradient of a
convolution with respect to its inputs is a convolution.

The first convolution, from one or three channels, is a product with the patches of the image, and
its instance norm needs no pass over the outputs: the patches are centred, so the outputs' mean is
zero, their variance follows from the patches' covariance, and the norm is folded into the weights.
The gradient is as short: what the norm adds to it is a product of the patches with a 9x9 matrix.

The factor 1/4 of the pooling is part of the norm's scale and shift, before the ReLU.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedstill.models.kernels import winograd
from fedstill.models.kernels.kernel import EPSILON, Kept, Kernel, Norm
from fedstill.types import Params

_AT_ONCE = 16  # images that take all blocks together


@dataclass(frozen=True)
class _First:
    """What the backward pass needs of the first block: the patches [N, inputs + 1, outputs],
    centred and a row of ones; the weights with the norm [N, inputs + 1, C]; the inverse standard
    deviations [N, C]."""

    patches: Tensor
    folded: Tensor
    inverse: Tensor


@dataclass(frozen=True)
class Trace:
    """What the backward pass needs of all blocks."""

    shape: tuple[int, ...]  # of the images
    first: list[_First]  # one
    later: list[list[Kept]]  # by block, in the parts in which it was computed


class Blocks:
    """The blocks with given weights; one object serves many chunks of images.

    Every block but the first must have an input whose sides are multiples of ``winograd.TILE``.
    """

    def __init__(
        self,
        kernel: Kernel,
        params: Params,
        blocks: int,
        padding: int,
        *,
        backward: bool = False,
    ) -> None:
        self._kernel, self._padding = kernel, padding
        self._first = params["block0.conv.weight"].flatten(1)
        names = [f"block{block}" for block in range(blocks)]
        self._norms = [
            Norm(params[f"{name}.norm.weight"] * 0.25, params[f"{name}.norm.bias"] * 0.25)
            for name in names
        ]
        weights = [params[f"{name}.conv.weight"] for name in names[1:]]
        turned = map(winograd.backward_weight, weights) if backward else ()
        self._weights = [kernel.transformed(weight) for weight in weights]
        self._backward = [kernel.transformed(weight) for weight in turned]

    @torch.no_grad()
    def outputs(self, x: Tensor, last: int) -> tuple[Tensor, ...]:
        """Outputs [N, C, H, W] of the last blocks."""
        with _exactly():
            parts = [self.forward(part, last) for part in x.split(_AT_ONCE)]
        if len(parts) == 1:
            return parts[0]
        return tuple(torch.cat(found) for found in zip(*parts, strict=True))

    def differentiable(self, x: Tensor, last: int) -> tuple[Tensor, ...]:
        """The same with a gradient with respect to ``x``; needs ``backward``."""
        found: tuple[Tensor, ...] = _Differentiable.apply(x, self, last)  # type: ignore[no-untyped-call]
        return found

    def trace(self, shape: tuple[int, ...]) -> Trace:
        """An empty one, to be filled by ``forward``."""
        return Trace(shape, [], [[] for _ in self._weights])

    def forward(self, x: Tensor, last: int, trace: Trace | None = None) -> tuple[Tensor, ...]:
        """The outputs of the last blocks of images that take all blocks together."""
        found: list[Tensor] = []
        height, width = ((side + 2 * self._padding - 2) // 2 for side in x.shape[2:])
        out = self._padded(0, x, height, width)
        first = self._first_block(x, out[:, 1:-1, 1:-1])
        if trace:
            trace.first.append(first)
        for block, norm in enumerate(self._norms):
            if block:
                before, at_once = out, self._kernel.later_at_once(height, width)
                height, width = height // 2, width // 2
                out = self._padded(block, x, height, width)
                for part in _parts(len(x), at_once):
                    kept = self._kernel.later(
                        *(before[part], self._weights[block - 1], norm),
                        out[part, 1:-1, 1:-1],
                        keep=trace is not None,
                    )
                    if trace and kept:
                        trace.later[block - 1].append(kept)
            if block >= len(self._norms) - last:
                found.append(out[:, 1:-1, 1:-1].movedim(-1, 1).contiguous())
        return tuple(found)

    def backward(self, trace: Trace, gradients: tuple[Tensor | None, ...]) -> Tensor:
        """The gradient of the images from those of the last blocks' outputs."""
        given: list[Tensor | None] = [None] * (len(self._norms) - len(gradients))
        given += [None if g is None else g.movedim(1, -1) for g in gradients]
        coming = given[-1]
        for block in range(len(self._norms) - 1, 0, -1):
            if coming is not None:
                coming = self._later_gradient(block, trace.later[block - 1], coming)
            coming = _sum(coming, given[block - 1])
        if coming is None or not len(coming):
            return self._first.new_zeros(trace.shape)
        return self._first_gradient(trace.first[0], coming, trace.shape)

    def _padded(self, block: int, like: Tensor, height: int, width: int) -> Tensor:
        """Room for a block's outputs with a border of zeros; only the inside is ever written."""
        shape = (len(like), height + 2, width + 2, len(self._first))
        return self._kernel.scratch(f"output {block}", like, *shape, zero=True)

    def _first_block(self, x: Tensor, into: Tensor) -> _First:
        weight, norm = self._first, self._norms[0]
        patches = _patches(x, self._padding)
        inputs = patches[:, :-1]
        inputs -= inputs.mean(2, keepdim=True)
        covariance = torch.bmm(inputs, inputs.mT) / patches.shape[2]
        variance = ((weight @ covariance) * weight).sum(2)
        inverse = torch.rsqrt(variance + EPSILON)
        factor = (norm.scale * inverse)[:, None]
        folded = torch.cat([weight.t() * factor, norm.shift.expand(len(x), 1, -1)], 1)
        self._kernel.first(patches, folded, into)
        return _First(patches, folded, inverse)

    def _first_gradient(self, kept: _First, coming: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Of the images, from that of the pooled outputs [N, H, W, C]."""
        weight, inputs = self._first, kept.patches[:, :-1]
        many, size, outputs = inputs.shape
        # The norm's gradient: factor x (gradient - its mean - normalised output x mean of
        # normalised output times gradient). The mean goes with the patches' own mean, and the
        # outputs are patches times weights, so that their part is a product of the patches.
        direct, along = self._kernel.first_backward(kept.patches, kept.folded, coming)
        slope = (along.mT * weight).sum(2) / outputs
        pull = weight.t() * (self._norms[0].scale * kept.inverse**3 * slope)[:, None]
        direct -= direct.mean(2, keepdim=True)
        direct -= torch.bmm(pull @ weight, inputs)
        height, width = (side + 2 * self._padding - 2 for side in shape[2:])
        by_corner = direct.view(many, size, 2, 2, height // 2, width // 2)
        in_order = by_corner.permute(0, 1, 4, 2, 5, 3).reshape(many, size, outputs)
        return F.fold(in_order, shape[2:], 3, padding=self._padding)

    def _later_gradient(self, block: int, parts: list[Kept], coming: Tensor) -> Tensor:
        """Of a block's inputs [N, H, W, C], from that of its outputs."""
        many, height, width, channels = coming.shape
        result = coming.new_empty(many, 2 * height, 2 * width, channels)
        start = 0
        for kept in parts:
            part = slice(start, start + len(kept.inverse))
            weights, norm = self._backward[block - 1], self._norms[block]
            self._kernel.later_backward(coming[part], kept, weights, norm, result[part])
            start = part.stop
        return result


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, blocks, last):  # type: ignore[no-untyped-def]
        ctx.blocks, ctx.trace = blocks, blocks.trace(tuple(x.shape))
        ctx.set_materialize_grads(False)
        with _exactly():
            return blocks.forward(x, last, ctx.trace)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *gradients):  # type: ignore[no-untyped-def]
        with _exactly():
            return ctx.blocks.backward(ctx.trace, gradients), None, None


def _exactly() -> torch.autocast:
    """No automatic mixed precision: norms folded into weights need all digits."""
    return torch.autocast("cpu", enabled=False)


def _parts(many: int, at_once: int) -> Iterator[slice]:
    return (slice(start, start + at_once) for start in range(0, many, at_once))


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def _patches(x: Tensor, padding: int) -> Tensor:
    """The inputs of each output and a row of ones: [N, inputs + 1, outputs], with the outputs
    sorted by their corner in the pooling."""
    x = F.pad(x, (padding,) * 4)
    many, channels, height, width = x.shape
    rows, columns = (height - 2) // 2, (width - 2) // 2
    by_image, by_channel, by_row, by_column = x.stride()
    near = x.as_strided(
        (many, channels, 3, 3, 2, 2, rows, columns),
        (by_image, by_channel, by_row, by_column, by_row, by_column, 2 * by_row, 2 * by_column),
    )
    patches = x.new_ones(many, channels * 9 + 1, 4 * rows * columns)
    patches[:, :-1].view(near.shape).copy_(near)
    return patches
