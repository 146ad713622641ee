"""Instance norm, ReLU and 2x2 average pooling as one function of tiles, with its derivatives.

With z the input, c = z - mean(z) and r = 1 / sqrt(var(z) + eps) per image and channel:

    y = alpha c + shift          alpha = scale r
    p = pool(y where y > 0)    = alpha M + shift K      M = pool(c where y > 0), K = pool(y > 0)

M and K have a quarter of the size of z, and all sums that the derivatives need are sums of products
with them. With d the gradient by p, and S1 = mean(d K), S2 = mean(d M) over the positions of z:

    dz = [y > 0] up(alpha d) / 4 + beta c + gamma      beta = -alpha r^2 S2, gamma = -alpha S1

Tangents (names that begin with ``dot``) are the derivatives of all of this along a direction of the
weights, with dot z given: the product rule, line by line.

Tensors: tiles [16, N, positions of a tile, C], pooled [2, 2, N, positions of a tile, C], per image
and channel [N, 1, C].
"""

from dataclasses import dataclass

import torch
from torch import Tensor

EPSILON = 1e-5  # of the norm, PyTorch's default


@dataclass(frozen=True)
class Affine:
    """Scale and shift of a norm, or a direction of them."""

    scale: Tensor
    shift: Tensor


@dataclass(frozen=True)
class Normed:
    """What the derivatives need."""

    centred: Tensor
    passed: Tensor  # 1 where y > 0, else 0
    pooled: Tensor  # M
    share: Tensor  # K
    inverse: Tensor  # r
    alpha: Tensor
    norm: Affine

    @property
    def positions(self) -> int:
        return self.centred.shape[0] * self.centred.shape[2]


@dataclass(frozen=True)
class Returned:
    """The gradient by the output, and what follows from it."""

    gradient: Tensor
    first: Tensor  # S1
    second: Tensor  # S2
    beta: Tensor


@dataclass(frozen=True)
class Moved:
    """The tangents of the forward pass."""

    centred: Tensor
    pooled: Tensor
    inverse: Tensor
    alpha: Tensor


def _pool(x: Tensor) -> Tensor:
    """Sums of 2x2: [2, 2, N, positions, C]."""
    _, many, tiles, channels = x.shape
    x = x.view(2, 2, 4, many, tiles, channels)
    rows = (x[:, 0] + x[:, 1]).view(2, 2, 2, many, tiles, channels)
    return rows[:, :, 0] + rows[:, :, 1]


def _up(x: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Views of both such that a pooled tensor is broadcast over its 2x2 positions."""
    return x[:, None, :, None], like.view(2, 2, 2, 2, *like.shape[1:])


def _mean(tiles: Tensor) -> Tensor:
    return tiles.mean(0).mean(1, keepdim=True)


def _mean_of_product(a: Tensor, b: Tensor, positions: int) -> Tensor:
    return (a * b).flatten(0, 1).sum(0).sum(1, keepdim=True) / positions


def forward(z: Tensor, norm: Affine) -> tuple[Tensor, Normed]:
    """The pooled output; ``z`` is overwritten."""
    centred = z.sub_(_mean(z))
    inverse = torch.rsqrt(_mean(centred.square()) + EPSILON)
    alpha = norm.scale * inverse
    passed = torch.addcmul(norm.shift, centred, alpha).gt_(0)
    pooled, share = _pool(passed * centred).mul_(0.25), _pool(passed).mul_(0.25)
    out = torch.addcmul(norm.shift * share, pooled, alpha)
    return out, Normed(centred, passed, pooled, share, inverse, alpha, norm)


def backward(kept: Normed, gradient: Tensor) -> tuple[Tensor, Affine, Returned]:
    """Gradients by z and by the norm's weights."""
    size = kept.positions
    first = _mean_of_product(gradient, kept.share, size)
    second = _mean_of_product(gradient, kept.pooled, size)
    beta = -kept.alpha * kept.inverse.square() * second
    dz = torch.addcmul(-kept.alpha * first, kept.centred, beta)
    _add_passed(dz, kept, gradient * (0.25 * kept.alpha))
    scale = (kept.inverse * second).sum((0, 1)) * size
    return dz, Affine(scale, first.sum((0, 1)) * size), Returned(gradient, first, second, beta)


def dot_forward(kept: Normed, dot_z: Tensor, along: Affine) -> tuple[Tensor, Moved]:
    """The tangent of the output; ``dot_z`` is overwritten."""
    centred = dot_z.sub_(_mean(dot_z))
    inverse = kept.inverse.pow(3).neg_() * _mean(kept.centred * centred)
    alpha = along.scale * kept.inverse + kept.norm.scale * inverse
    pooled = _pool(kept.passed * centred).mul_(0.25)
    out = (alpha * kept.pooled).addcmul_(kept.alpha, pooled).addcmul_(along.shift, kept.share)
    return out, Moved(centred, pooled, inverse, alpha)


def dot_backward(
    kept: Normed, back: Returned, moved: Moved, dot_gradient: Tensor
) -> tuple[Tensor, Affine]:
    """The tangents of the gradients by z and by the norm's weights."""
    size = kept.positions
    first = _mean_of_product(dot_gradient, kept.share, size)
    second = _mean_of_product(dot_gradient, kept.pooled, size)
    second += _mean_of_product(back.gradient, moved.pooled, size)
    square = kept.inverse.square()
    beta = -(moved.alpha * square + 2 * kept.alpha * kept.inverse * moved.inverse) * back.second
    beta -= kept.alpha * square * second
    gamma = -(moved.alpha * back.first + kept.alpha * first)
    dot_dz = torch.addcmul(gamma, kept.centred, beta).addcmul_(moved.centred, back.beta)
    through = (back.gradient * moved.alpha).addcmul_(dot_gradient, kept.alpha)
    _add_passed(dot_dz, kept, through.mul_(0.25))
    scale = (moved.inverse * back.second + kept.inverse * second).sum((0, 1)) * size
    return dot_dz, Affine(scale, first.sum((0, 1)) * size)


def _add_passed(dz: Tensor, kept: Normed, pooled: Tensor) -> None:
    above, below = _up(pooled, dz)
    below.addcmul_(kept.passed.view(below.shape), above)
