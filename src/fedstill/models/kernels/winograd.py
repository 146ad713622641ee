"""Forward pass of large ConvNets (width 64 or more) in fewer multiplications, without gradients.

Nearly all of such a network's time is spent in its 3x3 convolutions from ``width`` to ``width``
channels. Winograd's algorithm F(4x4, 3x3) computes 4x4 outputs from a 6x6 tile of inputs with 36
products where the definition needs 144: three small linear maps (:data:`_INPUT` of the tiles,
:data:`_WEIGHT` of the weights, :data:`_OUTPUT` of the products) around one matrix product for each
of the 36 positions. In single precision its error is about three times that of the definition
(2e-6 against 8e-7 of the outputs' norm), which is negligible in a mean over records.

Channels come last here, so that every copy and sum runs over whole rows of channels, and an output
stays in tiles until it is pooled. The first convolution, from one or three channels, is a product
with the patches of the image, and its instance norm needs no pass over the outputs: the patches
are centred, so the outputs' mean is zero, their variance follows from the patches' covariance, and
the norm is folded into the weights.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from fedstill.types import Params

TILE = 4  # outputs per side; an input tile has two more
_AT_ONCE = 16  # images: their tiles fit into the processor's second cache
_EPSILON = 1e-5  # of the norm, PyTorch's default

# Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016, section 4.3: the
# one-dimensional maps. The two-dimensional maps are their Kronecker products with themselves.
_INPUT = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
_WEIGHT = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
_OUTPUT = (
    (1, 1, 1, 1, 1, 0),
    (0, 1, -1, 2, -2, 0),
    (0, 1, 1, 4, 4, 0),
    (0, 1, -1, 8, -8, 1),
)


@lru_cache(maxsize=16)
def _matrix(map_: tuple[tuple[float, ...], ...], dtype: torch.dtype) -> Tensor:
    return torch.tensor(map_, dtype=dtype)


def _twice(map_: tuple[tuple[float, ...], ...], tiles: Tensor) -> Tensor:
    """The map in both dimensions of tiles [rows, columns, ...]: [new rows x new columns, ...]."""
    matrix = _matrix(map_, tiles.dtype)
    by_row = (matrix @ tiles.reshape(len(tiles), -1)).view(len(matrix), tiles.shape[1], -1)
    return torch.matmul(matrix, by_row).view(len(matrix) ** 2, -1)


def outputs(params: Params, x: Tensor, blocks: int, padding: int) -> tuple[Tensor, ...]:
    """Outputs of the blocks of [convolution, instance norm, ReLU, average pooling], [N, C, H, W].

    Every block but the first must have an input whose sides are multiples of :data:`TILE`.
    """
    weights = [transformed(params[f"block{block}.conv.weight"]) for block in range(1, blocks)]
    parts = [_outputs(params, part, weights, padding) for part in x.split(_AT_ONCE)]
    return tuple(torch.cat(found) for found in zip(*parts, strict=True))


def _outputs(
    params: Params, x: Tensor, weights: Sequence[Tensor], padding: int
) -> tuple[Tensor, ...]:
    out = _first_block(params, x, padding)
    found = [out]
    for block, weight in enumerate(weights, 1):
        tiles = convolve(F.pad(out, (0, 0, 1, 1, 1, 1)), weight)
        out = _finish(tiles, *_norm_of(params, block))
        found.append(out)
    return tuple(out.movedim(-1, 1) for out in found)


def transformed(weight: Tensor) -> Tensor:
    """The weights [outputs, C, 3, 3] as :func:`convolve` needs them: [positions, C, outputs]."""
    flat = _twice(_WEIGHT, weight.permute(2, 3, 1, 0))
    return flat.view(-1, weight.shape[1], weight.shape[0])


def convolve(padded: Tensor, weights: Tensor) -> Tensor:
    """A 3x3 convolution of [N, H + 2, W + 2, C] in tiles: [4, 4, N, H / 4, W / 4, outputs]."""
    many, height, width, channels = padded.shape
    rows, columns = (height - 2) // TILE, (width - 2) // TILE
    by_image, by_row, by_column, _ = padded.stride()
    tiles = padded.as_strided(
        (TILE + 2, TILE + 2, many, rows, columns, channels),
        (by_row, by_column, by_image, TILE * by_row, TILE * by_column, 1),
    )
    side = TILE + 2
    inputs = _twice(_INPUT, tiles).view(side**2, -1, channels)
    products = torch.bmm(inputs, weights)
    results = _twice(_OUTPUT, products.view(side, side, -1))
    return results.view(TILE, TILE, many, rows, columns, -1)


def _first_block(params: Params, x: Tensor, padding: int) -> Tensor:
    weight = params["block0.conv.weight"].flatten(1)
    scale, shift = _norm_of(params, 0)
    patches = F.unfold(x, 3, padding=padding)  # [N, inputs of an output, outputs]
    patches = patches - patches.mean(2, keepdim=True)
    covariance = torch.bmm(patches, patches.transpose(1, 2)) / patches.shape[2]
    variance = ((weight @ covariance) * weight).sum(2)
    scaled = weight * (scale * torch.rsqrt(variance + _EPSILON))[:, :, None]
    rows, columns = ((side + 2 * padding - 2) // 2 for side in x.shape[2:])
    # The four outputs that are pooled into one are consecutive.
    corners = patches.unflatten(2, (rows, 2, columns, 2)).permute(3, 5, 0, 2, 4, 1)
    pooled = x.new_zeros(len(x), rows * columns, len(weight))
    for corner in corners.reshape(4, len(x), rows * columns, -1):
        out = torch.baddbmm(shift.expand(len(x), 1, -1), corner, scaled.transpose(1, 2))
        pooled += out.relu_()
    return pooled.mul_(0.25).view(len(x), rows, columns, -1)


def _norm_of(params: Params, block: int) -> tuple[Tensor, Tensor]:
    return params[f"block{block}.norm.weight"], params[f"block{block}.norm.bias"]


def _finish(tiles: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Norm, ReLU and pooling of the output of :func:`convolve`: [N, H / 2, W / 2, C].

    Sums over the first dimension first: they run over long rows.
    """
    many, rows, columns, channels = tiles.shape[2:]
    x = tiles.view(TILE * TILE, many, rows * columns, channels)
    x = x - x.mean(0).mean(1)[None, :, None]
    variance = x.square().mean(0).mean(1)
    factor = scale * torch.rsqrt(variance + _EPSILON)
    x = torch.addcmul(shift, x, factor[None, :, None]).relu_()
    x = x.view(2, 2, 2, 2, many, rows, columns, channels)
    pooled = (x[:, 0, :, 0] + x[:, 1, :, 0]).add_(x[:, 0, :, 1]).add_(x[:, 1, :, 1]).mul_(0.25)
    return pooled.permute(2, 3, 0, 4, 1, 5).reshape(many, 2 * rows, 2 * columns, channels)
