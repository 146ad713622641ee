"""Balls around the current weights, within which a surrogate of the loss is built and trusted.

Norms run over all weights together, flattened.
"""

import torch

from fedstill.steps.arithmetic import add, norm, subtract
from fedstill.types import Params


def sample_ball(params: Params, radius: float, generator: torch.Generator) -> Params:
    """``params`` plus a standard normal vector, scaled down to norm ``radius`` if it is longer.

    With many weights it always is longer (its norm is about the square root of their number), so
    this is a step of length ``radius`` in a random direction. Drawn on the CPU on every device.
    """
    direction = {
        k: torch.randn(v.shape, generator=generator, dtype=v.dtype) for k, v in params.items()
    }
    shrink = min(1.0, radius / max(float(norm(direction)), 1e-30))
    return {k: torch.add(v, direction[k].to(v.device), alpha=shrink) for k, v in params.items()}


def project_ball(params: Params, centre: Params, radius: float) -> Params:
    """The projection of ``params`` onto the ball of ``radius`` around ``centre``."""
    step = subtract(params, centre)
    distance = float(norm(step))
    return add(centre, step, radius / distance) if distance > radius else params
