"""The mechanism as a slow obvious loop, the reference in tests of private forms."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedstill.privacy.randomness import Replayed
from fedstill.records import Records
from fedstill.rng import Rng
from fedstill.types import Params, Task


def clipped_gradients(
    task: Task,
    params: Params,
    records: Records,
    rate: float,
    clip: float,
    change: Callable[[Tensor], Tensor] = lambda x: x,
    access: int = 0,
) -> list[tuple[int, list[Tensor]]]:
    """Label and clipped gradient of every record that ``doors.door`` samples, one at a time."""
    draws = Replayed(Rng(5)).uniform(access, len(records))
    found = []
    for row in (draws < rate).nonzero().flatten():
        x, y = records.take(row[None])
        weights = {k: v.clone().requires_grad_(True) for k, v in params.items()}
        loss = task.loss(task.model.apply(weights, change(x)), y).sum()
        gradient = torch.autograd.grad(
            loss, list(weights.values()), allow_unused=True, materialize_grads=True
        )
        length = float(torch.cat([g.flatten() for g in gradient]).norm())
        found.append((int(y), [g * min(1.0, clip / length) for g in gradient]))
    return found


def noise_like(shapes: list[torch.Size], scale: float, access: int = 0) -> list[Tensor]:
    """The noise of an access of ``doors.door``, tensor after tensor."""
    sizes = [shape.numel() for shape in shapes]
    noise = Replayed(Rng(5)).normal(access, sum(sizes)) * scale
    return [
        part.view(shape).float() for part, shape in zip(noise.split(sizes), shapes, strict=True)
    ]


def noisy_mean(
    task: Task,
    params: Params,
    records: Records,
    *,
    rate: float,
    clip: float,
    sigma: float,
    size: int,
    change: Callable[[Tensor], Tensor] = lambda x: x,
) -> list[Tensor]:
    """(sum of clipped gradients + noise) / (rate * size) of the first access."""
    total = noise_like([v.shape for v in params.values()], sigma * clip)
    for _, gradient in clipped_gradients(task, params, records, rate, clip, change):
        total = [t + g for t, g in zip(total, gradient, strict=True)]
    return [t / (rate * size) for t in total]
