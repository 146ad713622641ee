"""Training a model on synthetic images: what servers do with the sets they receive."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fedstill.rng import Rng
from fedstill.steps.arithmetic import add
from fedstill.steps.augment import Augment, draw_augmentation
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
    augment: Augment = "none",
    flip: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Params:
    """The weights after SGD on the mean loss, for some ``epochs`` or ``iterations``.

    Labels are class numbers or distributions. ``weights`` gives the images unequal shares in the
    loss; their mean should be 1. ``radius`` keeps every step within that distance of ``start``.
    ``augment`` changes every batch in a way of its own (``flip``: mirror images are allowed too).
    """
    if (epochs is None) == (iterations is None):
        raise ValueError("give either epochs or iterations")
    steps = iterations if epochs is None else epochs * math.ceil(len(images) / batch_size)
    assert steps is not None
    params = tracked(start)
    changes = rng.at("augment").torch()
    velocity = {k: torch.zeros_like(v) for k, v in start.items()} if momentum else {}
    for step, rows in zip(range(steps), _batches(len(images), batch_size, rng), strict=False):
        rows = rows.to(images.device)
        share = None if weights is None else weights[rows]
        seen = draw_augmentation(augment, changes, flip=flip)(images[rows])
        gradient, _ = batch_gradient(task, params, seen, labels[rows], share)
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


def descend(
    task: Task, params: Params, images: Tensor, labels: Tensor, learning_rate: float
) -> Params:
    """The weights after one step down the gradient of the mean loss over all images."""
    gradient, _ = batch_gradient(task, tracked(params), images, labels)
    return add(params, dict(zip(params, gradient, strict=True)), -learning_rate)


def _batches(number: int, size: int, rng: Rng) -> Iterator[Tensor]:
    """Epoch after epoch, each in an order of its own."""
    generator = rng.at("order").torch()
    while True:
        yield from torch.randperm(number, generator=generator).split(size)
