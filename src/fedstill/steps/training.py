"""How a network is trained: the settings, the learning-rate schedules and the SGD update."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from msgspec import Meta
from torch import Tensor

from fedstill.rng import Rng
from fedstill.steps.augment import Augment
from fedstill.types import Params, Task
from fedstill.wire.tree import to_device

Schedule = Literal["constant", "step", "cosine"]
Decay = Literal["none", "cosine"]

# The factor on the learning rate after this share of the training.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "step": lambda done: 1.0 if done < 0.5 else 0.1,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}


def decayed(learning_rate: float, decay: Decay, number: int, rounds: int) -> float:
    """The learning rate in round ``number``, counting from 1; it decays over ``rounds``, and stays
    at their last value."""
    schedule = "constant" if decay == "none" else decay
    return learning_rate * SCHEDULES[schedule]((min(number, rounds) - 1) / rounds)


@dataclass(frozen=True)
class Training:
    """SGD on a set of examples. ``flip``: augmentation may mirror images (never for digits)."""

    learning_rate: Annotated[float, Meta(gt=0)]
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    batch_size: Annotated[int, Meta(ge=1)] = 256
    epochs: Annotated[int, Meta(ge=1)] = 1
    schedule: Schedule = "constant"
    augment: Augment = "none"
    flip: bool = False

    def steps(self, examples: int) -> int:
        """The number of steps of all epochs on ``examples``."""
        return self.epochs * math.ceil(examples / self.batch_size)

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of step number ``step``, counting from 0."""
        return self.learning_rate * SCHEDULES[self.schedule](step / steps)


class Sgd:
    """The SGD update, in place: momentum, weight decay, and a term that a method may add."""

    def __init__(self, weights: Params, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        self._weights = weights
        self._momentum, self._weight_decay = momentum, weight_decay
        self._velocity = {k: torch.zeros_like(v) for k, v in weights.items()} if momentum else {}

    @torch.no_grad()
    def step(
        self, gradient: Sequence[Tensor], learning_rate: float, extra: Params | None = None
    ) -> None:
        """One step along ``-gradient`` (in the order of the weights), which is overwritten."""
        for (name, weight), direction in zip(self._weights.items(), gradient, strict=True):
            if self._weight_decay:
                direction.add_(weight, alpha=self._weight_decay)
            if extra:
                direction.add_(extra[name])
            if self._momentum:
                direction = self._velocity[name].mul_(self._momentum).add_(direction)
            weight.sub_(direction, alpha=learning_rate)


def initial_weights(task: Task, rng: Rng) -> Params:
    """Newly initialised weights on the task's device."""
    return to_device(task.model.init(rng.torch()), task.device)
