"""DSA: differentiable Siamese augmentation (Zhao and Bilen, ICML 2021).

One random transformation is drawn and applied to both real and synthetic images, so that the two
are compared under the same augmentation. Gradients flow through it to the pixels. Strengths are
those of the authors' code: brightness 1, saturation 2, contrast 0.5, shift 12.5%, cutout half the
side, scale 1.2, rotation 15 degrees. Pixels from outside the image are 0, the scaled images' mean.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from fedstill.steps.matching import same

Augment = Literal["none", "dsa"]

_SHIFT, _CUTOUT, _SCALE, _DEGREES = 0.125, 0.5, 1.2, 15.0


@dataclass(frozen=True)
class Change:
    """One kind of transformation with its three uniform draws in 0..1."""

    kind: str
    draws: tuple[float, float, float]

    def __call__(self, x: Tensor) -> Tensor:
        return CHANGES[self.kind](x, *self.draws)


def draw_augmentation(
    augment: Augment, generator: torch.Generator, *, flip: bool
) -> Callable[[Tensor], Tensor]:
    """This iteration's transformation. ``flip``: whether a mirrored image keeps its class."""
    if augment == "none":
        return same
    kinds = [kind for kind in CHANGES if flip or kind != "flip"]
    kind = kinds[int(torch.randint(len(kinds), (), generator=generator))]
    first, second, third = torch.rand(3, generator=generator, dtype=torch.float64).tolist()
    return Change(kind, (first, second, third))


def colour(x: Tensor, brightness: float, saturation: float, contrast: float) -> Tensor:
    """Shift all values, scale saturation about the grey image and contrast about the mean."""
    x = x + (brightness - 0.5)
    grey = x.mean(1, keepdim=True)
    x = (x - grey) * (2.0 * saturation) + grey if x.shape[1] > 1 else x
    mean = x.mean((1, 2, 3), keepdim=True)
    return (x - mean) * (contrast + 0.5) + mean


def crop(x: Tensor, down: float, right: float, _: float) -> Tensor:
    """Shift by at most an eighth of the side."""
    height, width = x.shape[-2:]
    rows, columns = _at_most(down, height * _SHIFT), _at_most(right, width * _SHIFT)
    top, left = max(rows, 0), max(columns, 0)
    return pad(x, (left, max(-columns, 0), top, max(-rows, 0)))[
        ..., max(-rows, 0) : max(-rows, 0) + height, max(-columns, 0) : max(-columns, 0) + width
    ]


def cutout(x: Tensor, down: float, right: float, _: float) -> Tensor:
    """Zero a square of half the side, centred at a random pixel."""
    mask = torch.ones(x.shape[-2:], dtype=x.dtype, device=x.device)
    spans = []
    for side, at in zip(x.shape[-2:], (down, right), strict=True):
        size = int(side * _CUTOUT + 0.5)
        start = int(at * (side + (1 - size % 2))) - size // 2
        spans.append(slice(max(start, 0), min(start + size, side)))
    mask[spans[0], spans[1]] = 0.0
    return x * mask


def flip(x: Tensor, whether: float, _: float, __: float) -> Tensor:
    """Mirror left and right with probability 1/2."""
    return x.flip(-1) if whether < 0.5 else x


def scale(x: Tensor, height: float, width: float, _: float) -> Tensor:
    """Stretch each side by a factor between 1/1.2 and 1.2."""
    by_height, by_width = (f * (_SCALE - 1 / _SCALE) + 1 / _SCALE for f in (height, width))
    return _affine(x, [[by_width, 0.0, 0.0], [0.0, by_height, 0.0]])


def rotate(x: Tensor, angle: float, _: float, __: float) -> Tensor:
    """Rotate by at most 15 degrees."""
    radians = (angle - 0.5) * 2 * math.radians(_DEGREES)
    cosine, sine = math.cos(radians), math.sin(radians)
    return _affine(x, [[cosine, -sine, 0.0], [sine, cosine, 0.0]])


CHANGES: dict[str, Callable[[Tensor, float, float, float], Tensor]] = {
    "colour": colour,
    "crop": crop,
    "cutout": cutout,
    "flip": flip,
    "scale": scale,
    "rotate": rotate,
}


def _at_most(draw: float, most: float) -> int:
    """A whole number in -most .. most, uniformly distributed."""
    reach = int(most + 0.5)
    return min(int(draw * (2 * reach + 1)), 2 * reach) - reach


def _affine(x: Tensor, matrix: list[list[float]]) -> Tensor:
    theta = torch.tensor(matrix, dtype=x.dtype, device=x.device).expand(len(x), 2, 3)
    grid = affine_grid(theta, list(x.shape), align_corners=False)
    return grid_sample(x, grid, align_corners=False)
