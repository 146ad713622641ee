"""3x3 convolutions in a quarter of the multiplications, by Winograd's algorithm F(4x4, 3x3).

It computes 4x4 outputs from a 6x6 tile of inputs with 36 products where the definition needs 144:
three small linear maps (of the tiles, of the weights, of the products) around one matrix product
for each of the 36 positions (the maps: Lavin and Gray, "Fast algorithms for convolutional neural
networks", CVPR 2016, section 4.3). In single precision its error is about three times that of the
definition (2e-6 against 8e-7 of the outputs' norm), which is negligible in a mean over records.

Channels come last, so that every operation runs over whole rows of channels, and outputs stay in
tiles. The maps have few and small entries: as sums of slices they need no copy of the overlapping
tiles. Few tiles are computed at a time, into memory that is used again, so that the time does not
depend on whether the C library keeps freed memory.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

TILE = 4  # outputs per side; an input tile has two more
_SIDE = TILE + 2
TILES_AT_ONCE = 64  # rows of each matrix product; measured: 32 is slower, more is no faster


class Scratch:
    """Memory by name that is used again: new pages cost more than the sums written there."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def __call__(self, name: str, like: Tensor, *shape: int, zero: bool = False) -> Tensor:
        """A tensor of this shape. ``zero``: zero at its first use, and later as it was left."""
        size = torch.Size(shape).numel()
        kept = self._kept.get(name)
        if kept is None or kept.numel() < size:
            kept = like.new_zeros(size) if zero else like.new_empty(size)
            self._kept[name] = kept
        return kept[:size].view(shape)


def transformed(weight: Tensor) -> Tensor:
    """The weights [outputs, C, 3, 3] as :func:`convolve` needs them: [positions, C, outputs]."""
    return mapped(outputs_last(weight)).view(_SIDE**2, weight.shape[1], weight.shape[0])


def outputs_last(weight: Tensor) -> Tensor:
    """The weights as [3, 3, C, outputs], by copies of which one is a plain transpose: fast."""
    outputs, channels = weight.shape[:2]
    last = weight.reshape(outputs, -1).t().contiguous()
    return last.view(channels, 3, 3, outputs).permute(1, 2, 0, 3)


def mapped(weight: Tensor) -> Tensor:
    """Weights [3, 3, ...] mapped in both dimensions: [6, 6, ...]."""
    by_row = weight.new_empty(_SIDE, *weight.shape[1:])
    _map_weights(weight, list(by_row))
    both = weight.new_empty(_SIDE, _SIDE, *weight.shape[2:])
    _map_weights(by_row.unbind(1), both.unbind(1))
    return both


def backward_weight(weight: Tensor) -> Tensor:
    """The weights of the convolution that takes gradients of the outputs to those of the inputs."""
    return weight.flip(2, 3).transpose(0, 1)


def convolve(padded: Tensor, weights: Tensor, scratch: Scratch | None = None) -> Tensor:
    """A 3x3 convolution of [N, H + 2, W + 2, C] in tiles: [4, 4, N, H / 4, W / 4, outputs].

    The result lies in ``scratch`` and is valid until the next call.
    """
    scratch = scratch or Scratch()
    many, height, width, channels = padded.shape
    rows, columns = (height - 2) // TILE, (width - 2) // TILE
    shape = (many, rows, columns)

    by_row = scratch("by row", padded, _SIDE, many, rows, width, channels)
    spare = scratch("spare", padded, 2, many, rows, width, channels)
    every = TILE * (rows - 1) + 1
    _map_inputs([padded[:, i : i + every : TILE] for i in range(_SIDE)], list(by_row), spare)

    inputs = scratch("inputs", padded, _SIDE, _SIDE, *shape, channels)
    spare = scratch("spare", padded, 2, _SIDE, *shape, channels)
    every = TILE * (columns - 1) + 1
    slices = [by_row[:, :, :, j : j + every : TILE] for j in range(_SIDE)]
    _map_inputs(slices, list(inputs.unbind(1)), spare)

    out = weights.shape[2]
    products = scratch("products", padded, _SIDE**2, many * rows * columns, out)
    torch.bmm(inputs.view(_SIDE**2, -1, channels), weights, out=products)

    by_row = scratch("by row", padded, TILE, _SIDE, *shape, out)
    _map_products(
        list(products.view(_SIDE, _SIDE, *shape, out)),
        list(by_row),
        scratch("spare", padded, 2, _SIDE, *shape, out),
    )
    results = scratch("results", padded, TILE, TILE, *shape, out)
    spare = scratch("spare", padded, 2, TILE, *shape, out)
    _map_products(list(by_row.unbind(1)), list(results.unbind(1)), spare)
    return results


def _map_weights(g: Sequence[Tensor] | Tensor, into: Sequence[Tensor]) -> None:
    """The one-dimensional map of weights: (1/4, 0, 0), (-1/6, -1/6, -1/6), (-1/6, 1/6, -1/6),
    (1/24, 1/12, 1/6), (1/24, -1/12, 1/6), (0, 0, 1)."""
    torch.mul(g[0], 1 / 4, out=into[0])
    into[5].copy_(g[2])
    outer = (g[0] + g[2]).mul_(-1 / 6)
    torch.sub(outer, g[1], alpha=1 / 6, out=into[1])
    torch.add(outer, g[1], alpha=1 / 6, out=into[2])
    torch.mul(g[0], 1 / 24, out=outer).add_(g[2], alpha=1 / 6)
    torch.add(outer, g[1], alpha=1 / 12, out=into[3])
    torch.sub(outer, g[1], alpha=1 / 12, out=into[4])


def _map_inputs(d: Sequence[Tensor], into: Sequence[Tensor], spare: Tensor) -> None:
    """The one-dimensional map of inputs: (4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0), (0, -2, -1, 2, 1, 0), (0, 2, -1, -2, 1, 0), (0, 4, 0, -5, 0, 1)."""
    even, odd = spare
    torch.add(d[4], d[0], alpha=4, out=into[0]).sub_(d[2], alpha=5)
    torch.add(d[5], d[1], alpha=4, out=into[5]).sub_(d[3], alpha=5)
    torch.sub(d[4], d[2], alpha=4, out=even)
    torch.sub(d[3], d[1], alpha=4, out=odd)
    torch.add(even, odd, out=into[1])
    torch.sub(even, odd, out=into[2])
    torch.sub(d[4], d[2], out=even)
    torch.sub(d[3], d[1], out=odd)
    torch.add(even, odd, alpha=2, out=into[3])
    torch.sub(even, odd, alpha=2, out=into[4])


def _map_products(p: Sequence[Tensor], into: Sequence[Tensor], spare: Tensor) -> None:
    """The one-dimensional map of products: (1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0),
    (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)."""
    one, two = spare
    torch.add(p[1], p[2], out=one)
    torch.add(p[3], p[4], out=two)
    torch.add(p[0], one, out=into[0]).add_(two)
    torch.add(one, two, alpha=4, out=into[2])
    torch.sub(p[1], p[2], out=one)
    torch.sub(p[3], p[4], out=two)
    torch.add(one, two, alpha=2, out=into[1])
    torch.add(p[5], one, out=into[3]).add_(two, alpha=8)
