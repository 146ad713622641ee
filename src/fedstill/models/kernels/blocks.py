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
from fedstill.models.kernels.winograd import TILE, Scratch
from fedstill.types import Params

_AT_ONCE = 16  # images that take all blocks together
_FIRST_AT_ONCE = 4  # images whose first outputs fit into the processor's second cache
_EPSILON = 1e-5  # of the norm, PyTorch's default


@dataclass(frozen=True)
class _First:
    """What the backward pass needs of the first block: the patches [N, inputs + 1, outputs],
    centred and a row of ones; the weights with the norm [N, inputs + 1, C]; the inverse standard
    deviations [N, C]."""

    patches: Tensor
    folded: Tensor
    inverse: Tensor


@dataclass(frozen=True)
class _Later:
    """The same of a later block: its convolution, centred, and what the ReLU let through
    [4, 4, N, H / 4, W / 4, C]; the inverse standard deviations [N, C]."""

    centred: Tensor
    active: Tensor
    inverse: Tensor


@dataclass
class _Trace:
    """What the backward pass needs of all blocks, in the parts in which they were computed."""

    shape: tuple[int, ...]
    first: list[_First]
    later: list[list[_Later]]  # by block


class Blocks:
    """The blocks with given weights; one object serves many chunks of images.

    Every block but the first must have an input whose sides are multiples of ``winograd.TILE``.
    """

    def __init__(self, params: Params, blocks: int, padding: int, *, backward: bool = False):
        self._padding = padding
        self._first = params["block0.conv.weight"].flatten(1)
        names = [f"block{block}" for block in range(blocks)]
        self._scale = [params[f"{name}.norm.weight"] * 0.25 for name in names]
        self._shift = [params[f"{name}.norm.bias"] * 0.25 for name in names]
        weights = [params[f"{name}.conv.weight"] for name in names[1:]]
        self._weights = [winograd.transformed(weight) for weight in weights]
        turned = map(winograd.backward_weight, weights) if backward else ()
        self._backward = [winograd.transformed(weight) for weight in turned]
        self._scratch = Scratch()

    @torch.no_grad()
    def outputs(self, x: Tensor, last: int) -> tuple[Tensor, ...]:
        """Outputs [N, C, H, W] of the last blocks."""
        parts = [self.forward(part, last) for part in x.split(_AT_ONCE)]
        return tuple(torch.cat(found) for found in zip(*parts, strict=True))

    def differentiable(self, x: Tensor, last: int) -> tuple[Tensor, ...]:
        """The same with a gradient with respect to ``x``; needs ``backward``."""
        found: tuple[Tensor, ...] = _Differentiable.apply(x, self, last)  # type: ignore[no-untyped-call]
        return found

    def forward(self, x: Tensor, last: int, trace: _Trace | None = None) -> tuple[Tensor, ...]:
        """The outputs of the last blocks of images that take all blocks together."""
        blocks = len(self._scale)
        found: list[Tensor] = []
        sides = [(side + 2 * self._padding - 2) // 2 for side in x.shape[2:]]
        before = self._padded("output 0", x, *sides)
        for part in _parts(len(x), _FIRST_AT_ONCE):
            self._first_block(x[part], before[part, 1:-1, 1:-1], trace)
        for block in range(blocks):
            if block:
                at_once = winograd.images_at_once(*sides)
                sides = [side // 2 for side in sides]
                out = self._padded(f"output {block}", x, *sides)
                for part in _parts(len(x), at_once):
                    self._later_block(block, before[part], out[part, 1:-1, 1:-1], trace)
                before = out
            if block >= blocks - last:
                found.append(before[:, 1:-1, 1:-1].movedim(-1, 1).contiguous())
        return tuple(found)

    def backward(self, trace: _Trace, gradients: tuple[Tensor | None, ...]) -> Tensor:
        """The gradient of the images from those of the last blocks' outputs."""
        given: list[Tensor | None] = [None] * (len(self._scale) - len(gradients))
        given += [None if g is None else g.movedim(1, -1) for g in gradients]
        coming = given[-1]
        for block in range(len(self._scale) - 1, 0, -1):
            if coming is not None:
                coming = self._later_gradient(block, trace.later[block - 1], coming)
            coming = _sum(coming, given[block - 1])
        if coming is None:
            return trace.first[0].patches.new_zeros(trace.shape)
        parts = zip(_parts(len(coming), _FIRST_AT_ONCE), trace.first, strict=True)
        return torch.cat([self._first_gradient(kept, coming[p], trace.shape) for p, kept in parts])

    def _padded(self, name: str, like: Tensor, height: int, width: int, many: int = 0) -> Tensor:
        """Images of all channels with a border of zeros, of which only the inside is written."""
        shape = (many or len(like), height + 2, width + 2, len(self._first))
        return self._scratch(name, like, *shape, zero=True)

    def _first_block(self, x: Tensor, into: Tensor, trace: _Trace | None) -> None:
        weight = self._first
        patches = _patches(x, self._padding)
        inputs = patches[:, :-1]
        inputs -= inputs.mean(2, keepdim=True)
        covariance = torch.bmm(inputs, inputs.transpose(1, 2)) / patches.shape[2]
        variance = ((weight @ covariance) * weight).sum(2)
        inverse = torch.rsqrt(variance + _EPSILON)
        factor = (self._scale[0] * inverse)[:, None]
        folded = torch.cat([weight.t() * factor, self._shift[0].expand(len(x), 1, -1)], 1)
        out = self._first_outputs(patches, folded).unflatten(2, into.shape[1:3])
        half = out[:, 0].add_(out[:, 1]).add_(out[:, 2])
        torch.add(half, out[:, 3], out=into)
        if trace:
            trace.first.append(_First(patches, folded, inverse))

    def _first_outputs(self, patches: Tensor, folded: Tensor) -> Tensor:
        """The first block before the pooling: [N, corner of the pooling, outputs, C]."""
        many, _, outputs = patches.shape
        out = self._scratch("first", patches, many, outputs, folded.shape[2])
        torch.bmm(patches.transpose(1, 2), folded, out=out)
        return out.relu_().view(many, 4, outputs // 4, -1)

    def _first_gradient(self, kept: _First, coming: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Of the images, from that of the pooled outputs [N, H, W, C]."""
        weight, inputs = self._first, kept.patches[:, :-1]
        many, size, outputs = inputs.shape
        active = self._first_outputs(kept.patches, kept.folded)
        through = _through_relu(coming.flatten(1, 2)[:, None].expand_as(active), active, active)
        through = through.view(many, outputs, -1)
        # d output / d convolution = factor (own gradient - mean - normalised x mean of normalised
        # x gradient): the mean vanishes with the patches' own, the rest is a product of patches.
        direct = torch.bmm(kept.folded[:, :-1], through.transpose(1, 2))
        along = torch.bmm(inputs, through)  # [N, inputs, C]
        slope = (along.transpose(1, 2) * weight).sum(2) / outputs
        pull = weight.t() * (self._scale[0] * kept.inverse**3 * slope)[:, None]
        patches = direct - direct.mean(2, keepdim=True)
        patches -= torch.bmm(pull @ weight, inputs)
        height, width = (side + 2 * self._padding - 2 for side in shape[2:])
        by_corner = patches.view(many, size, 2, 2, height // 2, width // 2)
        in_order = by_corner.permute(0, 1, 4, 2, 5, 3).reshape(many, size, outputs)
        return F.fold(in_order, shape[2:], 3, padding=self._padding)

    def _later_block(self, block: int, padded: Tensor, into: Tensor, trace: _Trace | None) -> None:
        """Sums over the first dimension first: they run over long rows."""
        tiles = winograd.convolve(padded, self._weights[block - 1], self._scratch)
        many, rows, columns, channels = tiles.shape[2:]
        x = tiles.view(TILE * TILE, many, rows * columns, channels)
        x -= x.mean(0).mean(1)[:, None]
        active = self._scratch("active", x, *x.shape)
        variance = torch.mul(x, x, out=active).mean(0).mean(1)
        inverse = torch.rsqrt(variance + _EPSILON)
        factor = (self._scale[block] * inverse)[:, None]
        torch.addcmul(self._shift[block], x, factor, out=active).relu_()
        if trace:
            trace.later[block - 1].append(
                _Later(tiles.clone(), active.view_as(tiles).clone(), inverse)
            )
        four = active.view(2, 2, 2, 2, many, rows, columns, channels)
        half = four[:, 0, :, 0].add_(four[:, 0, :, 1]).add_(four[:, 1, :, 0])
        torch.add(half, four[:, 1, :, 1], out=_in_tiles(into, 2))

    def _later_gradient(self, block: int, parts: list[_Later], coming: Tensor) -> Tensor:
        """Of a block's inputs [N, H, W, C], from that of its outputs."""
        many, height, width, channels = coming.shape
        result = coming.new_empty(many, 2 * height, 2 * width, channels)
        start = 0
        for kept in parts:
            part = slice(start, start + kept.centred.shape[2])
            self._part_gradient(block, kept, coming[part], result[part])
            start = part.stop
        return result

    def _part_gradient(self, block: int, kept: _Later, coming: Tensor, into: Tensor) -> None:
        many, height, width, _ = into.shape
        given = self._scratch(
            "given", coming, *(2, 2, many, height // 4, width // 4, into.shape[3])
        )
        given.copy_(_in_tiles(coming, 2))
        through = self._scratch("active", coming, *kept.active.shape)
        pooled = (2, 2, 2, 2, *kept.active.shape[2:])
        active, by_corner = kept.active.view(pooled), through.view(pooled)
        for row in (0, 1):
            for column in (0, 1):
                corner = (slice(None), row, slice(None), column)
                _through_relu(given, active[corner], by_corner[corner])
        flat = (TILE * TILE, many, -1, into.shape[3])
        x, gradient = kept.centred.view(flat), through.view(flat)
        product = torch.mul(x, gradient, out=self._scratch("product", x, *x.shape))
        factor = self._scale[block] * kept.inverse
        mean = gradient.mean(0).mean(1)
        slope = product.mean(0).mean(1) * kept.inverse.square()
        torch.addcmul((-factor * mean)[:, None], gradient, factor[:, None], out=gradient)
        gradient.addcmul_(x, (-factor * slope)[:, None])
        padded = self._padded(f"gradient {block}", coming, height, width, many)
        _in_tiles(padded[:, 1:-1, 1:-1], TILE).copy_(through)
        found = winograd.convolve(padded, self._backward[block - 1], self._scratch)
        _in_tiles(into, TILE).copy_(found)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, blocks, last):  # type: ignore[no-untyped-def]
        ctx.blocks = blocks
        ctx.trace = _Trace(tuple(x.shape), [], [[] for _ in blocks._weights])
        ctx.set_materialize_grads(False)
        return blocks.forward(x, last, ctx.trace)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *gradients):  # type: ignore[no-untyped-def]
        return ctx.blocks.backward(ctx.trace, gradients), None, None


def _parts(many: int, at_once: int) -> Iterator[slice]:
    return (slice(start, start + at_once) for start in range(0, many, at_once))


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def _through_relu(coming: Tensor, active: Tensor, into: Tensor) -> Tensor:
    """The gradient where the ReLU's output is positive, and zero elsewhere."""
    torch.ops.aten.threshold_backward.grad_input(coming, active, 0, grad_input=into)
    return into


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


def _in_tiles(image: Tensor, side: int) -> Tensor:
    """A view of [N, H, W, C] as [side, side, N, H / side, W / side, C]."""
    many, height, width, channels = image.shape
    by_image, by_row, by_column, by_channel = image.stride()
    return image.as_strided(
        (side, side, many, height // side, width // side, channels),
        (by_row, by_column, by_image, side * by_row, side * by_column, by_channel),
        image.storage_offset(),
    )
