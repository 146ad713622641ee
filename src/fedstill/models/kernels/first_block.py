"""The first block of a ConvNet, with its derivatives: few channels in, many out.

Its convolution is a product with the patches of the image. The patches are centred, so the mean of
every output is zero, its variance follows from the patches' covariance C, and the instance norm
folds into the weights w: with r = 1 / sqrt(w C w + eps),

    y = f P + shift     f = scale r w, per image

No pass over the outputs (the largest tensors of the network) is made for the norm, in any of the
derivatives: they need only G, the sum over the positions of dy P, which is as small as the weights.
What follows from G is small algebra. Tangents (names that begin with ``dot``) are the derivatives
along a direction of the weights, by the product rule.

The outputs are not kept: each pass computes them again for one image or a few at a time, in the
second cache, which is faster than to write them to memory and to read them again.
Tensors: patches [N, inputs of an output + 1, H x W], of which the last input is 1; outputs
[N, H x W, C]; weights [inputs of an output, C]. Positions are in the order of the corners: first
the upper left of every four outputs that are pooled into one, and so on.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedstill.models.kernels.norm_pool import EPSILON, Affine

_AT_ONCE = 2**17  # outputs: half a megabyte


@dataclass(frozen=True)
class First:
    """The block's weights and its norm, or a direction of them."""

    weight: Tensor
    norm: Affine


@dataclass(frozen=True)
class FirstKept:
    """What the derivatives need."""

    patches: Tensor
    covariance: Tensor
    folded: Tensor  # f and the shift [N, inputs + 1, C]
    spread: Tensor  # C w
    inverse: Tensor  # r
    sides: tuple[int, int]  # of the pooled output

    def parts(self) -> Iterator[slice]:
        """The images, a few at a time."""
        many, _, positions = self.patches.shape
        size = max(1, _AT_ONCE // (positions * self.folded.shape[2]))
        return (slice(start, start + size) for start in range(0, many, size))

    def outputs(self, part: slice) -> Tensor:
        """The outputs of some images before the ReLU."""
        return torch.bmm(self.patches[part].mT, self.folded[part])


@dataclass(frozen=True)
class FirstReturned:
    """A quarter of the gradient by the output, and G with the sum of dy."""

    gradient: Tensor
    sums: Tensor


@dataclass(frozen=True)
class FirstMoved:
    """Tangents of the forward pass."""

    folded: Tensor
    inverse: Tensor


def forward(first: First, x: Tensor, padding: int) -> tuple[Tensor, FirstKept]:
    """The pooled output [N, H/2, W/2, C]."""
    rows, columns = ((side + 2 * padding - 2) // 2 for side in x.shape[2:])
    flat = F.unfold(x, 3, padding=padding)
    flat -= flat.mean(2, keepdim=True)
    covariance = torch.bmm(flat, flat.mT) / flat.shape[2]
    many, inputs, positions = flat.shape
    patches = x.new_ones(many, inputs + 1, positions)
    split = flat.view(many, inputs, rows, 2, columns, 2).permute(0, 1, 3, 5, 2, 4)
    patches[:, :-1].view(split.shape).copy_(split)
    spread = torch.matmul(covariance, first.weight)
    inverse = torch.rsqrt((spread * first.weight).sum(1) + EPSILON)
    factor = (first.norm.scale * inverse)[:, None]
    folded = _with_shift(factor * first.weight, first.norm.shift)
    kept = FirstKept(patches, covariance, folded, spread, inverse, (rows, columns))
    pooled = x.new_empty(many, positions // 4, folded.shape[2])
    for part in kept.parts():
        _pool(kept.outputs(part).relu_(), pooled[part])
    return pooled.view(many, rows, columns, -1), kept


def backward(first: First, kept: FirstKept, gradient: Tensor) -> tuple[First, FirstReturned]:
    """Gradients by the block's weights; ``gradient`` [N, H/2, W/2, C]."""
    quarter = (gradient * 0.25).flatten(1, 2)
    sums = torch.empty_like(kept.folded)
    for part in kept.parts():
        dy = _passed(_up(quarter[part]), kept.outputs(part))
        torch.bmm(kept.patches[part], dy, out=sums[part])
    along = (first.weight * sums[:, :-1]).sum(1)
    by_variance = -0.5 * first.norm.scale * kept.inverse.pow(3) * along
    by_weight = (first.norm.scale * kept.inverse)[:, None] * sums[:, :-1]
    by_weight += 2 * by_variance[:, None] * kept.spread
    norm = Affine((kept.inverse * along).sum(0), sums[:, -1].sum(0))
    return First(by_weight.sum(0), norm), FirstReturned(quarter, sums)


def dot_forward(first: First, kept: FirstKept, along: First) -> tuple[Tensor, FirstMoved]:
    """The tangent of the output."""
    scale, inverse = first.norm.scale, kept.inverse
    dot_inverse = -inverse.pow(3) * (kept.spread * along.weight).sum(1)
    dot_factor = along.norm.scale * inverse + scale * dot_inverse
    dot_folded = dot_factor[:, None] * first.weight + (scale * inverse)[:, None] * along.weight
    folded = _with_shift(dot_folded, along.norm.shift)
    many, _, positions = kept.patches.shape
    pooled = folded.new_empty(many, positions // 4, folded.shape[2])
    for part in kept.parts():
        dot_y = torch.bmm(kept.patches[part].mT, folded[part])
        _pool(_passed(dot_y, kept.outputs(part)), pooled[part])
    return pooled.view(len(pooled), *kept.sides, -1), FirstMoved(folded, dot_inverse)


def dot_backward(
    first: First,
    kept: FirstKept,
    back: FirstReturned,
    along: First,
    moved: FirstMoved,
    dot_gradient: Tensor,
) -> tuple[Tensor, First]:
    """The tangents of the gradients by the patches (as if not centred) and by the weights."""
    quarter = (dot_gradient * 0.25).flatten(1, 2)
    dot_sums = torch.empty_like(back.sums)
    by_patches = torch.empty_like(kept.patches[:, :-1])
    for part in kept.parts():
        out = kept.outputs(part)
        dot_dy = _passed(_up(quarter[part]), out)
        torch.bmm(kept.patches[part], dot_dy, out=dot_sums[part])
        torch.bmm(kept.folded[part, :-1], dot_dy.mT, out=by_patches[part])
        dy = _passed(_up(back.gradient[part]), out)
        by_patches[part].baddbmm_(moved.folded[part, :-1], dy.mT)

    w, v, sums, dot = first.weight, along.weight, back.sums[:, :-1], dot_sums[:, :-1]
    scale, inverse, dot_inverse = first.norm.scale, kept.inverse, moved.inverse
    inner = (w * sums).sum(1)
    dot_inner = (v * sums + w * dot).sum(1)
    cube = inverse.pow(3)
    by_variance = -0.5 * scale * cube * inner
    dot_cube = along.norm.scale * cube + 3 * scale * inverse.square() * dot_inverse
    dot_by_variance = -0.5 * (dot_cube * inner + scale * cube * dot_inner)
    # The gradient by the covariance, C = P P^T / positions, as one by the patches.
    mixed = torch.matmul(by_variance[:, None] * v, w.t())
    by_covariance = torch.matmul(dot_by_variance[:, None] * w, w.t()) + mixed + mixed.mT
    by_patches.baddbmm_(by_covariance * (2 / kept.patches.shape[2]), kept.patches[:, :-1])

    dot_factor = along.norm.scale * inverse + scale * dot_inverse
    by_weight = dot_factor[:, None] * sums + (scale * inverse)[:, None] * dot
    by_weight += 2 * dot_by_variance[:, None] * kept.spread
    by_weight += 2 * by_variance[:, None] * torch.matmul(kept.covariance, v)
    by_scale = (dot_inverse * inner + inverse * dot_inner).sum(0)
    return by_patches, First(by_weight.sum(0), Affine(by_scale, dot_sums[:, -1].sum(0)))


def to_pixels(by_patches: Tensor, sides: tuple[int, int], padding: int) -> Tensor:
    """The gradient by the image [N, C, H, W] from that by its patches."""
    many, inputs, _ = by_patches.shape
    height, width = sides
    rows, columns = ((side + 2 * padding - 2) // 2 for side in sides)
    split = by_patches.view(many, inputs, 2, 2, rows, columns).permute(0, 1, 4, 2, 5, 3)
    flat = split.reshape(many, inputs, -1)
    flat -= flat.mean(2, keepdim=True)  # the patches were centred
    return F.fold(flat, (height, width), 3, padding=padding)


def _with_shift(folded: Tensor, shift: Tensor) -> Tensor:
    """The factors of the patches and of the 1 in them."""
    return torch.cat([folded, shift.expand(len(folded), 1, -1)], 1)


def _pool(out: Tensor, into: Tensor) -> None:
    corners = out.unflatten(1, (4, -1))
    torch.add(corners[:, 0], corners[:, 1], out=into)
    into.add_(corners[:, 2]).add_(corners[:, 3]).mul_(0.25)


def _up(pooled: Tensor) -> Tensor:
    """A pooled tensor at each of its four corners."""
    return pooled[:, None].expand(-1, 4, -1, -1)


def _passed(x: Tensor, out: Tensor) -> Tensor:
    """``x`` where the ReLU's output is positive, else 0."""
    found = torch.ops.aten.threshold_backward(x, out.view(x.shape), 0)
    assert isinstance(found, Tensor)
    return found.view(out.shape)
