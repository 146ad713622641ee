"""The public constants of a data set. The catalogue has them, which must not import PyTorch."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# What records show, as far as it is public: writing is never mirrored, photographs may be, and tiny
# images have too few pixels to be warped.
Kind = Literal["writing", "grey", "photo", "tiny", "other"]


@dataclass(frozen=True)
class Scaling:
    """Fixed public constants that turn raw inputs into network inputs.

    Images come as bytes: x -> (x / 255 - mean) / std, per channel. The constants are
    never computed from the clients' records: that would leak them (docs/privacy.md).
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, inputs: "Tensor") -> "Tensor":
        import torch

        if not self.mean:  # tokens and other inputs that are used as they are
            return inputs
        scale = 1.0 / 255.0 if inputs.dtype == torch.uint8 else 1.0
        # One multiply and one add: the constants are folded first.
        shift, factor = _constants(self, scale, inputs.dim(), inputs.device)
        return torch.addcmul(shift, inputs.float(), factor)

    def undo(self, x: "Tensor") -> "Tensor":
        """Back to the range 0..1 (not clipped), for drawing images."""
        import torch

        if not self.mean:
            return x
        shape = (1, -1, *([1] * (x.dim() - 2)))
        std = torch.tensor(self.std, device=x.device).view(shape)
        mean = torch.tensor(self.mean, device=x.device).view(shape)
        return x * std + mean


@lru_cache(maxsize=32)  # asked for with every batch, however small
def _constants(
    scaling: Scaling, scale: float, dimensions: int, device: "torch.device"
) -> "tuple[Tensor, Tensor]":
    """What is added to inputs, and before that multiplied with them, as tensors."""
    import torch

    shape = (1, -1, *([1] * (dimensions - 2)))
    std = torch.tensor(scaling.std, device=device).view(shape)
    mean = torch.tensor(scaling.mean, device=device).view(shape)
    return -mean / std, scale / std
