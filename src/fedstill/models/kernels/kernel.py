"""The operations that :mod:`fedstill.models.kernels.blocks` spends its time in, by PyTorch."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstill.models.kernels import winograd
from fedstill.models.kernels.winograd import TILE, Scratch

EPSILON = 1e-5  # of the norm, PyTorch's default
_FIRST_AT_ONCE = 4  # images whose first outputs fit into the processor's second cache


@dataclass(frozen=True)
class Norm:
    """Scale and shift of an instance norm, with the factor of the pooling in both."""

    scale: Tensor
    shift: Tensor


@dataclass(frozen=True)
class Kept:
    """What the backward pass needs of a block: its convolution, centred, in the order of the kernel
    that computed it, and the inverse standard deviations [N, C]."""

    centred: Tensor
    inverse: Tensor


class Kernel:
    """Operations on some images, whose channels come last, with memory that is used again."""

    def __init__(self) -> None:
        self.scratch = Scratch()

    def later_at_once(self, height: int, width: int) -> int:
        """Images with inputs of this size that a later block computes fastest."""
        return max(1, winograd.TILES_AT_ONCE * TILE * TILE // (height * width))

    def transformed(self, weight: Tensor) -> Tensor:
        """The weights of a convolution [C, C, 3, 3] as ``later`` needs them."""
        return winograd.transformed(weight)

    def first(self, patches: Tensor, folded: Tensor, into: Tensor) -> None:
        """The ReLU of patches [N, size, 4 x outputs] times weights [N, size, C], summed over the
        four outputs that are pooled: [N, H, W, C]."""
        for some, weights, pooled in _few(patches, folded, into):
            out = self._first_active(some, weights).unflatten(2, into.shape[1:3])
            three = out[:, 0].add_(out[:, 1]).add_(out[:, 2])
            torch.add(three, out[:, 3], out=pooled)

    def first_backward(
        self, patches: Tensor, folded: Tensor, coming: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The gradient that the ReLU lets through, times the weights [N, size - 1, 4 x outputs],
        and times the patches [N, size - 1, C]."""
        many, size, outputs = patches.shape
        direct = patches.new_empty(many, size - 1, outputs)
        along = torch.empty_like(folded[:, :-1])
        groups = _few(patches, folded, coming.flatten(1, 2), direct, along)
        for some, weights, given, to_patches, to_weights in groups:
            active = self._first_active(some, weights)
            through = _through_relu(given[:, None].expand_as(active), active, active)
            rows = through.flatten(1, 2)
            to_patches.copy_(torch.bmm(weights[:, :-1], rows.mT))
            to_weights.copy_(torch.bmm(some[:, :-1], rows))
        return direct, along

    def _first_active(self, patches: Tensor, folded: Tensor) -> Tensor:
        many, _, outputs = patches.shape
        channels = folded.shape[2]
        out = self.scratch("first", patches, many, outputs, channels)
        torch.bmm(patches.mT, folded, out=out)
        return out.relu_().view(many, 4, outputs // 4, channels)

    def later(
        self, padded: Tensor, weights: Tensor, norm: Norm, into: Tensor, *, keep: bool
    ) -> Kept | None:
        """Convolution, norm, ReLU and pooling of [N, H + 2, W + 2, C] to [N, H / 2, W / 2, C].

        Sums run over the first dimension first, whose rows are long.
        """
        tiles = winograd.convolve(padded, weights, self.scratch)
        many, rows, columns, channels = tiles.shape[2:]
        x = tiles.view(TILE * TILE, many, rows * columns, channels)
        x -= x.mean(0).mean(1)[:, None]
        active = self.scratch("active", x, *x.shape)
        variance = torch.mul(x, x, out=active).mean(0).mean(1)
        inverse = torch.rsqrt(variance + EPSILON)
        self._active(x, inverse, norm)
        four = active.view(2, 2, 2, 2, many, rows, columns, channels)
        three = four[:, 0, :, 0].add_(four[:, 0, :, 1]).add_(four[:, 1, :, 0])
        torch.add(three, four[:, 1, :, 1], out=_in_tiles(into, 2))
        return Kept(x.clone(), inverse) if keep else None

    def _active(self, x: Tensor, inverse: Tensor, norm: Norm) -> Tensor:
        out = self.scratch("active", x, *x.shape)
        return torch.addcmul(norm.shift, x, (norm.scale * inverse)[:, None], out=out).relu_()

    def later_backward(
        self, coming: Tensor, kept: Kept, weights: Tensor, norm: Norm, into: Tensor
    ) -> None:
        """The gradient of the block's inputs [N, H, W, C] from that of its outputs."""
        many, height, width, channels = into.shape
        pooled = (2, 2, many, height // TILE, width // TILE, channels)
        given = self.scratch("given", coming, *pooled).copy_(_in_tiles(coming, 2))
        x = kept.centred
        gradient = self._active(x, kept.inverse, norm)
        by_corner = gradient.view(2, 2, 2, *pooled[1:])
        for row in (0, 1):
            for column in (0, 1):
                corner = by_corner[:, row, :, column]
                _through_relu(given, corner, corner)
        product = torch.mul(x, gradient, out=self.scratch("product", x, *x.shape))
        factor = norm.scale * kept.inverse
        mean = gradient.mean(0).mean(1)
        slope = product.mean(0).mean(1) * kept.inverse.square()
        torch.addcmul((-factor * mean)[:, None], gradient, factor[:, None], out=gradient)
        gradient.addcmul_(x, (-factor * slope)[:, None])
        shape = (many, height + 2, width + 2, channels)
        padded = self.scratch(f"padded {height} {width}", x, *shape, zero=True)
        inside = _in_tiles(padded[:, 1:-1, 1:-1], TILE)
        inside.copy_(gradient.view(inside.shape))
        _in_tiles(into, TILE).copy_(winograd.convolve(padded, weights, self.scratch))


def _few(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The tensors of a few images after another."""
    return zip(*(tensor.split(_FIRST_AT_ONCE) for tensor in tensors), strict=True)


def _through_relu(coming: Tensor, active: Tensor, into: Tensor) -> Tensor:
    """The gradient where the ReLU's output is positive, and zero elsewhere."""
    torch.ops.aten.threshold_backward.grad_input(coming, active, 0, grad_input=into)
    return into


def _in_tiles(image: Tensor, side: int) -> Tensor:
    """A view of [N, H, W, C] as [side, side, N, H / side, W / side, C]."""
    many, height, width, channels = image.shape
    by_image, by_row, by_column, by_channel = image.stride()
    return image.as_strided(
        (side, side, many, height // side, width // side, channels),
        (by_row, by_column, by_image, side * by_row, side * by_column, by_channel),
        image.storage_offset(),
    )
