"""Training a model on synthetic images: what servers do with the sets they receive."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fedstill.rng import Rng
from fedstill.steps.arithmetic import add
from fedstill.steps.ball import project_ball
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.steps.matching import same
from fedstill.steps.training import Descent, Training
from fedstill.steps.warp import augmentations
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
    loss; their mean should be 1. With ``training.balanced`` they are shares within a class, and
    decide how often an image is drawn. ``radius`` keeps every step within that distance of
    ``start``. Each batch has its own augmentation. The network is in training mode.
    """
    steps = training.steps(len(images)) if iterations is None else iterations
    params = tracked(start)
    descent = Descent(params, training)
    augment = augmentations(training.augment, task, rng.at("augment").torch(), flip=training.flip)
    draws = rng.at("dropout").torch()
    batches = _batches(len(images), training.batch_size, rng)
    if training.balanced:
        classes = labels.argmax(1) if labels.is_floating_point() else labels
        batches = balanced_batches(classes, weights, training.batch_size, rng)
        weights = None
    mean = RunningMean(training.average)
    for step, rows in zip(range(steps), batches, strict=False):
        rows = rows.to(images.device)
        share = None if weights is None else weights[rows]
        inputs = augment()(images[rows])
        gradient, _ = batch_gradient(task, params, inputs, labels[rows], share, draws, mixed=True)
        descent.step(gradient, training.rate(step, steps))
        if radius is not None:
            with torch.no_grad():
                for name, inside in project_ball(params, start, radius).items():
                    params[name].copy_(inside)
        mean.add(params)
        if progress:
            progress(step + 1, steps)
    return mean.of(params)


class RunningMean:
    """An exponential running mean of weights, without bias towards the first; decay 0: the last."""

    def __init__(self, decay: float) -> None:
        self._decay, self._seen = decay, 0
        self._mean: Params = {}

    @torch.no_grad()
    def add(self, params: Params) -> None:
        """One more step's weights."""
        if not self._decay:
            return
        self._seen += 1
        new = (1 - self._decay) / (1 - self._decay**self._seen)
        for name, weight in params.items():
            mean = self._mean.setdefault(name, weight.detach().clone())
            mean.lerp_(weight, new)

    def of(self, params: Params) -> Params:
        """The mean, or ``params`` where there is none."""
        return {k: v.detach() for k, v in (self._mean or params).items()}


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


def balanced_batches(
    classes: Tensor, weights: Tensor | None, size: int, rng: Rng
) -> Iterator[Tensor]:
    """Batches in which every class has the same share, up to one image.

    Within a class, images are drawn in proportion to ``weights``. The batch is a systematic sample:
    images lie on a line, by class and shuffled within, each as long as it is probable, and a comb
    of ``size`` teeth at a random place takes them. None is drawn twice where enough are there.
    """
    classes = classes.cpu()
    shares = torch.ones(len(classes)) if weights is None else weights.cpu()
    shares = shares.double()
    of_class = torch.zeros(int(classes.max()) + 1, dtype=torch.float64)
    of_class.index_add_(0, classes, shares)
    shares = shares / of_class[classes]
    generator = rng.at("order").torch()
    while True:
        shuffled = torch.randperm(len(classes), generator=generator)
        order = shuffled[classes[shuffled].argsort(stable=True)]
        edges = shares[order].cumsum(0)
        place = torch.rand((), generator=generator, dtype=torch.float64)
        at = (torch.arange(size) + place) / size * edges[-1]
        yield order[torch.searchsorted(edges, at).clamp(max=len(order) - 1)]
