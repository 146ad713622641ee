"""Training a model on synthetic images: what servers do with the sets they receive."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fedstill.rng import Rng
from fedstill.steps.ball import project_ball
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.types import Params, Task


def fit(
    task: Task,
    start: Params,
    images: Tensor,
    labels: Tensor,
    rng: Rng,
    *,
    learning_rate: float,
    batch_size: int,
    epochs: int | None = None,
    iterations: int | None = None,
    momentum: float = 0.0,
    weights: Tensor | None = None,
    radius: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Params:
    """The weights after SGD on the mean loss, for some ``epochs`` or ``iterations``.

    Labels are class numbers or distributions. ``weights`` gives the images unequal shares in the
    loss; their mean should be 1. ``radius`` keeps every step within that distance of ``start``.
    """
    if (epochs is None) == (iterations is None):
        raise ValueError("give either epochs or iterations")
    steps = iterations if epochs is None else epochs * math.ceil(len(images) / batch_size)
    assert steps is not None
    params = tracked(start)
    velocity = {k: torch.zeros_like(v) for k, v in start.items()} if momentum else {}
    for step, rows in zip(range(steps), _batches(len(images), batch_size, rng), strict=False):
        rows = rows.to(images.device)
        share = None if weights is None else weights[rows]
        gradient, _ = batch_gradient(task, params, images[rows], labels[rows], share)
        with torch.no_grad():
            for (name, weight), slope in zip(params.items(), gradient, strict=True):
                if momentum:
                    slope = velocity[name].mul_(momentum).add_(slope)
                weight.sub_(slope, alpha=learning_rate)
            if radius is not None:
                for name, inside in project_ball(params, start, radius).items():
                    params[name].copy_(inside)
        if progress:
            progress(step + 1, steps)
    return {k: v.detach() for k, v in params.items()}


def _batches(number: int, size: int, rng: Rng) -> Iterator[Tensor]:
    """Epoch after epoch, each in an order of its own."""
    generator = rng.at("order").torch()
    while True:
        yield from torch.randperm(number, generator=generator).split(size)
