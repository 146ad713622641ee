"""Images as few bits: the levels of a pixel, fixed by the data's public scaling."""

import torch
from torch import Tensor

from fedstill.scaling import Scaling

_FAR, _FEW = 0.1, 0.01


def to_levels(x: Tensor, scaling: Scaling, bits: int) -> Tensor:
    """The nearest of 2 ** bits equal levels between black and white, as bytes."""
    highest = (1 << bits) - 1
    return (scaling.undo(x) * highest).round().clamp(0, highest).to(torch.uint8)


def from_levels(levels: Tensor, scaling: Scaling, bits: int) -> Tensor:
    """The pixels of these levels as a network sees them; of 8 bits, as those of records."""
    shape = (1, -1, *([1] * (levels.dim() - 2)))
    std = torch.tensor(scaling.std, device=levels.device).view(shape)
    mean = torch.tensor(scaling.mean, device=levels.device).view(shape)
    # The same arithmetic as the scaling's, so that a record sent as 8 bits arrives unchanged.
    return torch.addcmul(-mean / std, levels.float(), (1.0 / ((1 << bits) - 1)) / std)


def mostly_outside(x: Tensor, scaling: Scaling) -> bool:
    """Whether clipping would change the images: more than a hundredth of their pixels lie outside
    black and white by more than a tenth of the range."""
    shades = scaling.undo(x)
    far = (shades < -_FAR) | (shades > 1 + _FAR)
    return int(far.sum()) > _FEW * far.numel()


def as_sent(x: Tensor, scaling: Scaling, bits: int) -> Tensor:
    """The pixels as they arrive; the gradient passes as if nothing were rounded."""
    with torch.no_grad():
        change = from_levels(to_levels(x, scaling, bits), scaling, bits) - x
    return x + change
