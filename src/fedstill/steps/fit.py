"""Training a model on synthetic images: what servers do with the sets they receive."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fedstill.rng import Rng
from fedstill.steps.arithmetic import add
from fedstill.steps.augment import draw_augmentation
from fedstill.steps.ball import project_ball
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.steps.matching import same
from fedstill.steps.training import Descent, Training
from fedstill.types import Params, Task


def fit(
    task: Task,
    start: Params,
    images: Tensor,
    labels: Tensor,
    rng: Rng,
    training: Training,
    *,
    iterations: int | None = None,
    weights: Tensor | None = None,
    radius: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Params:
    """The weights after SGD on the mean loss for ``training.epochs``, or for ``iterations``.

    Labels are class numbers or distributions. ``weights`` gives the images unequal shares in the
    loss; their mean should be 1. ``radius`` keeps every step within that distance of ``start``.
    Each batch has its own augmentation. The network is in training mode.
    """
    steps = training.steps(len(images)) if iterations is None else iterations
    params = tracked(start)
    descent = Descent(params, training)
    changes, draws = rng.at("augment").torch(), rng.at("dropout").torch()
    batches = _batches(len(images), training.batch_size, rng)
    for step, rows in zip(range(steps), batches, strict=False):
        rows = rows.to(images.device)
        share = None if weights is None else weights[rows]
        augment = draw_augmentation(training.augment, changes, flip=training.flip)
        inputs = augment(images[rows])
        gradient, _ = batch_gradient(task, params, inputs, labels[rows], share, draws)
        descent.step(gradient, training.rate(step, steps))
        if radius is not None:
            with torch.no_grad():
                for name, inside in project_ball(params, start, radius).items():
                    params[name].copy_(inside)
        if progress:
            progress(step + 1, steps)
    return {k: v.detach() for k, v in params.items()}


def descend(
    task: Task,
    params: Params,
    images: Tensor,
    labels: Tensor,
    learning_rate: float,
    augment: Callable[[Tensor], Tensor] = same,
) -> Params:
    """The weights after one gradient-descent step on the mean loss over all images, augmented."""
    gradient, _ = batch_gradient(task, tracked(params), augment(images), labels)
    return add(params, dict(zip(params, gradient, strict=True)), -learning_rate)


def _batches(number: int, size: int, rng: Rng) -> Iterator[Tensor]:
    """Batches of one epoch after another, each epoch shuffled anew."""
    generator = rng.at("order").torch()
    while True:
        yield from torch.randperm(number, generator=generator).split(size)
