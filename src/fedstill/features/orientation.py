"""Histograms of edge orientations in cells, as in Dalal and Triggs (CVPR 2005), in their simplest
form: no overlapping blocks, square roots instead of block normalisation."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, pad

from fedstill.errors import RequestError
from fedstill.features.base import FeatureMap, positive_root, unit

_ORIENTATIONS = 8
_CELLS = 7  # per side, fewer in small images
_COLOUR_CELLS = 4


@dataclass(frozen=True)
class Orientation(FeatureMap):
    """How strong the edges of each of 8 orientations are in each of 7x7 cells; of colour images,
    those of the channel with the strongest edge, and the mean colours of 4x4 cells."""

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        check_images(self.shape, "orientation")

    @property
    def cells(self) -> tuple[int, int]:
        """Cells in height and width: at least two pixels each."""
        height, width = (min(_CELLS, max(1, side // 2)) for side in self.shape[1:])
        return height, width

    @property
    def size(self) -> int:
        colours = self.shape[0] * _COLOUR_CELLS**2 if self.shape[0] > 1 else 0
        return _ORIENTATIONS * math.prod(self.cells) + colours

    def __call__(self, x: Tensor) -> Tensor:
        across, down = _differences(x)
        strength = (across.square() + down.square()).sqrt()
        strongest = strength.argmax(1, keepdim=True)
        across, down, strength = (t.gather(1, strongest) for t in (across, down, strength))
        # An edge and its negative have one orientation; it is shared between the nearest two bins.
        place = torch.atan2(down, across).remainder(math.pi) * (_ORIENTATIONS / math.pi)
        bins = torch.arange(_ORIENTATIONS, device=x.device).view(1, -1, 1, 1)
        apart = (place - bins).abs()
        apart = torch.minimum(apart, _ORIENTATIONS - apart)
        share = (1 - apart).clamp(min=0) * strength
        edges = positive_root(adaptive_avg_pool2d(share, self.cells)).flatten(1)
        if self.shape[0] == 1:
            return unit(edges)
        colours = adaptive_avg_pool2d(x, _COLOUR_CELLS).flatten(1)
        return unit(torch.cat([unit(edges), unit(colours)], 1))


def _differences(x: Tensor) -> tuple[Tensor, Tensor]:
    """Central differences across and down; the border is repeated."""
    wide = pad(x, (1, 1, 1, 1), mode="replicate")
    return (
        wide[..., 1:-1, 2:] - wide[..., 1:-1, :-2],
        wide[..., 2:, 1:-1] - wide[..., :-2, 1:-1],
    )


def check_images(shape: tuple[int, ...], name: str) -> None:
    """Refuse inputs that are not images of at least 8x8 pixels."""
    if len(shape) != 3 or min(shape[1:]) < 8:
        raise RequestError(
            f"model.feature_map: '{name}' needs images of 8x8 pixels or more, not inputs of shape "
            f"{shape}; use 'pixels'"
        )
