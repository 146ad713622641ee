"""Augmentation of a server's training: every image is warped by a random draw of its own.

DSA (``augment.py``) draws one transformation for a whole batch, because both sides of a matching
must see the same one. In plain training each image may have its own, which is worth more: few
images then stand for many. All draws of a batch are made at once, and one grid per image says
where its pixels come from. Pixels from outside the image are those of its border.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, interpolate

from fedstill.errors import RequestError
from fedstill.scaling import Kind
from fedstill.steps.augment import draw_augmentation
from fedstill.steps.matching import same
from fedstill.types import Task

ImageAugment = Literal["auto", "none", "dsa", "affine", "affine+elastic", "photo"]


@dataclass(frozen=True)
class Warp:
    """The largest changes: the angle in degrees, the others as shares (of the side, of a unit)."""

    degrees: float
    scale: float
    shear: float
    shift: float
    bend: float = 0.0  # standard deviation of the elastic displacement, in sides
    flip: bool = False  # mirror every second image, on average

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Every image of the batch through a warp of its own."""
        grid = affine_grid(self._matrices(len(x), generator), list(x.shape), align_corners=False)
        if self.bend:
            grid = grid + self._displacement(x, generator)
        grid = grid.to(x)
        return grid_sample(x, grid, padding_mode="border", align_corners=False)

    def _matrices(self, number: int, generator: torch.Generator) -> Tensor:
        """One matrix [2, 3] per image."""
        draws = 2 * torch.rand(7, number, generator=generator) - 1
        turn, tall, wide, lean, down, right, side = draws
        angle = turn * math.radians(self.degrees)
        cosine, sine = angle.cos(), angle.sin()
        height, width = (1 + self.scale) ** tall, (1 + self.scale) ** wide
        if self.flip:
            width = torch.where(side < 0, -width, width)
        shear = lean * self.shear
        rows = (  # rotation after shear after scale; the last column is the shift
            (cosine * width, (cosine * shear - sine) * height, 2 * self.shift * right),
            (sine * width, (sine * shear + cosine) * height, 2 * self.shift * down),
        )
        return torch.stack([torch.stack(row, -1) for row in rows], 1)

    def _displacement(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """A smooth random field per image, in the grid's units (2 per side)."""
        field = torch.randn(len(x), 2, _KNOTS, _KNOTS, generator=generator) * (2 * self.bend)
        smooth = interpolate(field, x.shape[-2:], mode="bicubic", align_corners=True)
        return smooth.permute(0, 2, 3, 1)


_KNOTS = 5  # of the elastic field, per side

WARPS: Mapping[str, Warp] = {
    "affine": Warp(degrees=20, scale=0.2, shear=0.3, shift=0.1),
    "affine+elastic": Warp(degrees=20, scale=0.2, shear=0.3, shift=0.1, bend=0.06),
    "photo": Warp(degrees=5, scale=0.1, shear=0.05, shift=0.12, flip=True),
}
# By what is public about the data: their entry in the catalogue, or the shape of a record.
AUTOMATIC: Mapping[Kind, ImageAugment] = {
    "writing": "affine+elastic",
    "grey": "dsa",
    "photo": "photo",
    "tiny": "none",  # of 8x8 digits, warps cost points (docs/measurements.md)
    "other": "none",
}


def chosen_augment(augment: ImageAugment, task: Task) -> ImageAugment:
    """The augmentation that ``auto`` stands for; refused if the records are no images."""
    if augment == "auto":
        return AUTOMATIC[task.kind]
    if augment != "none" and len(task.shape) != 3:
        raise RequestError(
            f"method.server_augment = '{augment}': it changes images, and records of shape "
            f"{task.shape} are none; use 'none' or 'auto'"
        )
    return augment


def augmentations(
    augment: ImageAugment, task: Task, generator: torch.Generator, *, flip: bool
) -> Callable[[], Callable[[Tensor], Tensor]]:
    """Draws the change of one batch after another. ``flip``: whether DSA may mirror images."""
    chosen = chosen_augment(augment, task)
    if chosen in WARPS:
        return lambda: partial(WARPS[chosen], generator=generator)
    if chosen == "dsa":
        return lambda: draw_augmentation("dsa", generator, flip=flip)
    return lambda: same
