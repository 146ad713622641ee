"""The first block of a ConvNet, with its derivatives: few channels in, many out.

Its convolution is a product with the patches of the image. The patches are centred, so the mean of
every output is zero, its variance follows from the patches' covariance, and the instance norm folds
into the weights: with w the weights, C the covariance, r = 1 / sqrt(w C w + eps),

    y = f P + shift     f = scale r w, per image

No pass over the outputs (the largest tensors of the network) is made for the norm, in any of its
derivatives: they need only G = sum of dy P over the positions, which is as small as the weights.
What follows from G is small algebra (``_fold``, ``_unfold``); its tangents are left to PyTorch's
forward mode.

The outputs come as four corners, the first, second, ... of every four that are pooled into one.
Tensors: patches [4, N, inputs of an output + 1, H/2 x W/2], of which the last input is 1; outputs of
a corner [N, H/2 x W/2, C]; f [N, C, inputs of an output].
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedstill.models.kernels.norm_pool import EPSILON, Affine


@dataclass(frozen=True)
class First:
    """The block's weights [C, inputs of an output] and its norm, or a direction of them."""

    weight: Tensor
    norm: Affine


@dataclass(frozen=True)
class FirstKept:
    """What the derivatives need."""

    patches: Tensor
    covariance: Tensor
    corners: tuple[Tensor, ...]  # outputs after the ReLU
    folded: Tensor  # f and the shift
    sides: tuple[int, int]  # of the pooled output


@dataclass(frozen=True)
class FirstReturned:
    """A quarter of the gradient by the output, and G."""

    gradient: Tensor
    sums: Tensor


def forward(first: First, x: Tensor, padding: int) -> tuple[Tensor, FirstKept]:
    """The pooled output [N, H/2, W/2, C]."""
    rows, columns = ((side + 2 * padding - 2) // 2 for side in x.shape[2:])
    flat = F.unfold(x, 3, padding=padding)
    flat = flat - flat.mean(2, keepdim=True)
    covariance = torch.bmm(flat, flat.transpose(1, 2)) / flat.shape[2]
    many, inputs, _ = flat.shape
    patches = x.new_ones(4, many, inputs + 1, rows * columns)
    split = flat.view(many, inputs, rows, 2, columns, 2).permute(3, 5, 0, 1, 2, 4)
    patches[:, :, :-1].view(2, 2, many, inputs, rows, columns).copy_(split)
    folded = _with_shift(_fold(first.weight, first.norm.scale, covariance), first.norm.shift)
    corners = tuple(torch.bmm(p.transpose(1, 2), folded).relu_() for p in patches)
    out = (corners[0] + corners[1]).add_(corners[2]).add_(corners[3]).mul_(0.25)
    kept = FirstKept(patches, covariance, corners, folded, (rows, columns))
    return out.view(many, rows, columns, -1), kept


def backward(first: First, kept: FirstKept, gradient: Tensor) -> tuple[First, FirstReturned]:
    """Gradients by the block's weights; ``gradient`` [N, H/2, W/2, C]."""
    quarter = gradient.flatten(1, 2) * 0.25
    sums = _sums(kept, quarter)
    weight, scale, _ = _unfold(first.weight, first.norm.scale, kept.covariance, sums[:, :-1].mT)
    found = First(weight, Affine(scale, sums[:, -1].sum(0)))
    return found, FirstReturned(quarter, sums)


def dot_forward(first: First, kept: FirstKept, along: First) -> tuple[Tensor, Tensor]:
    """The tangents of the output and of f with the shift."""

    def fold(weight: Tensor, scale: Tensor) -> Tensor:
        return _fold(weight, scale, kept.covariance)

    primals, tangents = (first.weight, first.norm.scale), (along.weight, along.norm.scale)
    dot = _with_shift(torch.func.jvp(fold, primals, tangents)[1], along.norm.shift)
    total = torch.zeros_like(kept.corners[0])
    for patches, out in zip(kept.patches, kept.corners, strict=True):
        total += _passed(torch.bmm(patches.transpose(1, 2), dot), out)
    return total.mul_(0.25).view(len(total), *kept.sides, -1), dot


def dot_backward(
    first: First,
    kept: FirstKept,
    back: FirstReturned,
    along: First,
    dot_folded: Tensor,
    dot_gradient: Tensor,
) -> tuple[Tensor, First]:
    """The tangents of the gradients by the patches (before they are centred) and the weights."""
    quarter = dot_gradient.flatten(1, 2) * 0.25
    dot_sums = torch.zeros_like(back.sums)
    by_patches = torch.empty_like(kept.patches[:, :, :-1])
    for patches, out, into in zip(kept.patches, kept.corners, by_patches, strict=True):
        dot_dy = _passed(quarter, out)
        dot_sums.baddbmm_(patches, dot_dy)
        torch.bmm(kept.folded[:, :-1], dot_dy.mT, out=into)
        into.baddbmm_(dot_folded[:, :-1], _passed(back.gradient, out).mT)

    def unfold(weight: Tensor, scale: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return _unfold(weight, scale, kept.covariance, sums)

    primals = (first.weight, first.norm.scale, back.sums[:, :-1].mT)
    tangents = (along.weight, along.norm.scale, dot_sums[:, :-1].mT)
    weight, scale, by_covariance = torch.func.jvp(unfold, primals, tangents)[1]
    positions = 4 * kept.patches.shape[-1]
    by_patches += torch.matmul(by_covariance * (2 / positions), kept.patches[:, :, :-1])
    return by_patches, First(weight, Affine(scale, dot_sums[:, -1].sum(0)))


def to_pixels(by_patches: Tensor, sides: tuple[int, int], padding: int) -> Tensor:
    """The gradient by the image [N, C, H, W] from that by its patches."""
    _, many, inputs, _ = by_patches.shape
    height, width = sides
    rows, columns = ((side + 2 * padding - 2) // 2 for side in sides)
    split = by_patches.view(2, 2, many, inputs, rows, columns).permute(2, 3, 4, 0, 5, 1)
    flat = split.reshape(many, inputs, -1)
    flat = flat - flat.mean(2, keepdim=True)
    return F.fold(flat, (height, width), 3, padding=padding)


def _with_shift(folded: Tensor, shift: Tensor) -> Tensor:
    """[N, inputs + 1, C]: the factors of the patches and of the 1 in them."""
    return torch.cat([folded.mT, shift.expand(len(folded), 1, -1)], 1)


def _passed(x: Tensor, out: Tensor) -> Tensor:
    """``x`` where the ReLU's output is positive, else 0."""
    return torch.ops.aten.threshold_backward(x, out, 0)


def _sums(kept: FirstKept, quarter: Tensor) -> Tensor:
    """The sums over the positions of the output gradient times the patches: [N, inputs + 1, C]."""
    total = kept.folded.new_zeros(kept.folded.shape)
    for patches, out in zip(kept.patches, kept.corners, strict=True):
        total.baddbmm_(patches, _passed(quarter, out))
    return total


def _fold(weight: Tensor, scale: Tensor, covariance: Tensor) -> Tensor:
    variance = (torch.matmul(weight, covariance) * weight).sum(2)
    return (scale * torch.rsqrt(variance + EPSILON))[:, :, None] * weight


def _unfold(
    weight: Tensor, scale: Tensor, covariance: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The backward pass of ``_fold``: gradients by weight, scale and covariance."""
    spread = torch.matmul(weight, covariance)
    inverse = torch.rsqrt((spread * weight).sum(2) + EPSILON)
    along = (weight * sums).sum(2)
    by_variance = -0.5 * scale * inverse.pow(3) * along
    by_weight = (scale * inverse)[:, :, None] * sums + 2 * by_variance[:, :, None] * spread
    by_covariance = torch.matmul(weight.t() * by_variance[:, None], weight)
    return by_weight.sum(0), (inverse * along).sum(0), by_covariance
