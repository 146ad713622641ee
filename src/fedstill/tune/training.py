"""How a candidate network is trained on a distilled set: the hyper-parameters that are tuned."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from msgspec import Meta

from fedstill.rng import Rng
from fedstill.steps.augment import Augment, draw_augmentation
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.synthetic import SyntheticSet
from fedstill.types import Params, Task

Schedule = Literal["constant", "step", "cosine"]

# The share of the learning rate that is left when a share of the training is behind us.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda behind: 1.0,
    "step": lambda behind: 1.0 if behind < 0.5 else 0.1,
    "cosine": lambda behind: 0.5 * (1.0 + math.cos(math.pi * behind)),
}


@dataclass(frozen=True)
class Training:
    """SGD on a set. ``flip``: whether augmentation may mirror images (never for digits)."""

    learning_rate: Annotated[float, Meta(gt=0)] = 0.02
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    batch_size: Annotated[int, Meta(ge=1)] = 64
    epochs: Annotated[int, Meta(ge=1)] = 40
    schedule: Schedule = "step"
    augment: Augment = "none"
    flip: bool = False


def train(task: Task, own: SyntheticSet, training: Training, rng: Rng) -> Iterator[Params]:
    """The weights of a fresh network after one epoch after another.

    What is yielded is overwritten by the next epoch.
    """
    start = task.model.init(rng.at("init").torch())
    weights = tracked({name: tensor.to(task.device) for name, tensor in start.items()})
    velocity = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    steps = training.epochs * math.ceil(len(own) / training.batch_size)
    step = 0
    for epoch in range(training.epochs):
        order = torch.randperm(len(own), generator=rng.at("order", epoch).torch())
        changes = rng.at("augment", epoch).torch()
        for rows in order.split(training.batch_size):
            rows = rows.to(own.images.device)
            augment = draw_augmentation(training.augment, changes, flip=training.flip)
            images = augment(own.images[rows])
            gradient, _ = batch_gradient(task, weights, images, own.labels[rows])
            rate = training.learning_rate * SCHEDULES[training.schedule](step / steps)
            with torch.no_grad():
                for (name, weight), slope in zip(weights.items(), gradient, strict=True):
                    velocity[name].mul_(training.momentum).add_(slope)
                    weight.sub_(velocity[name], alpha=rate)
            step += 1
        yield {name: weight.detach() for name, weight in weights.items()}
