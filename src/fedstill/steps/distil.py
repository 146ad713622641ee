"""A client's inner loop: synthetic images optimised until their class means match the records'."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fedstill.steps.augment import Augment, draw_augmentation
from fedstill.steps.ball import sample_ball
from fedstill.steps.classes import ByClass
from fedstill.steps.matching import Matching, class_means, pixel_gradient, same
from fedstill.steps.pixel_optimiser import PixelAdam, PixelSgd
from fedstill.steps.resize import enlarged
from fedstill.types import ClientContext, Params, Task
from fedstill.wire.levels import as_sent

PixelOptimiser = Literal["sgd", "adam"]

_SMOOTHING = (
    0.9  # of the loss that early stopping watches: it is noisy, for the weights are redrawn
)


@dataclass(frozen=True)
class PixelSteps:
    """How pixels are optimised. ``patience`` 0: never stop early."""

    optimiser: PixelOptimiser
    learning_rate: float
    momentum: float
    real_batch: int
    augment: Augment = "none"
    flip: bool = False
    patience: int = 0
    tolerance: float = 0.0
    as_sent: bool = False  # match the images as the codec will round them
    shrink: int = 1  # the images are that much smaller than the network sees them
    per_draw: int = 1  # pixel steps per draw of weights and records


def seen_images(task: Task, steps: PixelSteps) -> Callable[[Tensor], Tensor]:
    """What is matched of the images: themselves, or what will arrive of them; at full size."""
    full = same if steps.shrink == 1 else partial(enlarged, shrink=steps.shrink)
    if not steps.as_sent or task.sent_bits is None:
        return full
    return after(partial(as_sent, scaling=task.scaling, bits=task.sent_bits), full)


def after(
    first: Callable[[Tensor], Tensor], second: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """The second after the first."""
    return lambda x: second(first(x))


def match_distribution(
    ctx: ClientContext,
    by_class: ByClass,
    centre: Params,
    radius: float,
    start: Tensor,
    plan: Sequence[Matching],
    steps: PixelSteps,
) -> tuple[Tensor, float]:
    """The images after ``len(plan)`` iterations, and the smoothed loss at the end.

    Iteration t: weights newly drawn from the ball around ``centre``, one real batch per class, one
    augmentation for both sides, ``per_draw`` steps along the negative pixel gradient of
    ``plan[t]``'s loss. The real side, which takes most of the time, is computed once for all.
    """
    images = start.detach().clone()
    optimiser = pixel_optimiser(images, steps)
    seen = seen_images(ctx.task, steps)
    weights_stream = ctx.rng.at("weights").torch()
    batch_stream = ctx.rng.at("batches").torch()
    augment_stream = ctx.rng.at("augment").torch()
    counts = by_class.counts.clamp(max=steps.real_batch)
    watch = Plateau(steps.patience, steps.tolerance)
    for iteration, matching in enumerate(plan):
        weights = sample_ball(centre, radius, weights_stream)
        augment = draw_augmentation(steps.augment, augment_stream, flip=steps.flip)
        positions, slots = by_class.draw(steps.real_batch, batch_stream)
        real = ((augment(x), s) for x, s in _chunks(ctx, positions, slots))
        means = class_means(ctx.task, weights, real, counts, matching)
        losses: list[Tensor] = []
        for _ in range(steps.per_draw):
            images.grad, loss = pixel_gradient(
                ctx.task, weights, images, means, matching, after(seen, augment)
            )
            optimiser.step()
            losses.append(loss)
        ctx.progress(iteration + 1, len(plan))
        if watch.settled(losses[0]):  # of images that have not yet seen these weights
            break
    images.grad = None
    return images, watch.smooth


class Plateau:
    """Detects that the running mean of a noisy loss no longer falls.

    Losses stay on their device until somebody asks: an accelerator need not wait at every step.
    """

    def __init__(self, patience: int, tolerance: float) -> None:
        self.patience, self.tolerance = patience, tolerance
        self._smooth = 0.0
        self._best = float("inf")
        self._since = 0
        self._seen = 0
        self._unread: list[Tensor] = []

    def settled(self, loss: Tensor) -> bool:
        """Whether the best running mean is older than ``patience`` losses, this one included."""
        self._unread.append(loss)
        return self.patience > 0 and self._read() >= self.patience

    @property
    def smooth(self) -> float:
        """The running mean."""
        self._read()
        return self._smooth

    def _read(self) -> int:
        """How many losses ago the running mean was best."""
        if self._unread:
            for loss in torch.stack(self._unread).tolist():
                self._add(loss)
            self._unread = []
        return self._since

    def _add(self, loss: float) -> None:
        self._seen += 1
        # Bias correction: the early mean must not be drawn towards its initial zero.
        new = (1 - _SMOOTHING) / (1 - _SMOOTHING**self._seen)
        self._smooth += new * (loss - self._smooth)
        if self._smooth < self._best * (1 - self.tolerance):
            self._best, self._since = self._smooth, 0
        else:
            self._since += 1


def _chunks(
    ctx: ClientContext, positions: Tensor, slots: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    size = ctx.task.chunk
    for part, part_slots in zip(positions.split(size), slots.split(size), strict=True):
        yield ctx.records.take(part)[0], part_slots.to(ctx.task.device)


def pixel_optimiser(images: Tensor, steps: PixelSteps) -> PixelAdam | PixelSgd:
    """The optimiser that updates ``images`` in place from ``images.grad``."""
    if steps.optimiser == "adam":
        return PixelAdam(images, steps.learning_rate)
    return PixelSgd(images, steps.learning_rate, steps.momentum)
