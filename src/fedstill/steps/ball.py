"""Balls around the current weights: where a surrogate of the loss is built, and may be trusted.

Norms run over all weights together, flattened.
"""

import torch

from fedstill.steps.arithmetic import add, norm, subtract
from fedstill.types import Params


def sample_ball(params: Params, radius: float, generator: torch.Generator) -> Params:
    """``params`` plus a standard normal vector, cut to length ``radius`` where it is longer.

    With many weights it always is (its length is about the root of their number), so this is a
    step of length ``radius`` in a random direction. Drawn on the CPU, whatever the device.
    """
    direction = {
        k: torch.randn(v.shape, generator=generator, dtype=v.dtype) for k, v in params.items()
    }
    shrink = min(1.0, radius / max(float(norm(direction)), 1e-30))
    return {k: torch.add(v, direction[k].to(v.device), alpha=shrink) for k, v in params.items()}


def project_ball(params: Params, centre: Params, radius: float) -> Params:
    """The nearest weights that are within ``radius`` of ``centre``: ``params`` if they are."""
    step = subtract(params, centre)
    distance = float(norm(step))
    return add(centre, step, radius / distance) if distance > radius else params
