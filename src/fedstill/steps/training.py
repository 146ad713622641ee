"""How a network is trained: the settings, the learning-rate schedules and the update rules."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import torch
from msgspec import Meta
from torch import Tensor

from fedstill.rng import Rng
from fedstill.steps.warp import ImageAugment
from fedstill.types import Params, Task
from fedstill.wire.tree import to_device

Schedule = Literal["constant", "step", "cosine"]
Decay = Literal["none", "cosine"]
Optimiser = Literal["sgd", "adam"]

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
    """Steps on batches of a set of examples. ``momentum`` is SGD's; Adam has its own.

    ``flip``: DSA may mirror images (never for digits). ``balanced``: every class has the same share
    in every batch, however many examples it has. ``average``: the decay of a running mean of the
    weights, which is then the result; 0: the last weights are.
    """

    learning_rate: Annotated[float, Meta(gt=0)]
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    batch_size: Annotated[int, Meta(ge=1)] = 256
    epochs: Annotated[int, Meta(ge=1)] = 1
    schedule: Schedule = "constant"
    augment: ImageAugment = "none"
    flip: bool = False
    optimiser: Optimiser = "sgd"
    balanced: bool = False
    average: Annotated[float, Meta(ge=0, lt=1)] = 0.0

    def steps(self, examples: int) -> int:
        """The number of steps of all epochs on ``examples``."""
        return self.epochs * math.ceil(examples / self.batch_size)

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of step number ``step``, counting from 0."""
        return self.learning_rate * SCHEDULES[self.schedule](step / steps)


class Update(Protocol):
    """The direction of a step for one weight, from its gradient, which may be overwritten."""

    def direction(self, gradient: Tensor) -> Tensor: ...


class Sgd:
    """The gradient itself, with momentum if there is any."""

    def __init__(self, weight: Tensor, momentum: float) -> None:
        self._momentum = momentum
        self._velocity = torch.zeros_like(weight) if momentum else None

    def direction(self, gradient: Tensor) -> Tensor:
        if self._velocity is None:
            return gradient
        return self._velocity.mul_(self._momentum).add_(gradient)


class Adam:
    """Kingma and Ba, ICLR 2015, with their values; SGD's momentum is not used."""

    _FIRST, _SECOND, _SMALL = 0.9, 0.999, 1e-8

    def __init__(self, weight: Tensor, momentum: float) -> None:
        self._mean, self._square = torch.zeros_like(weight), torch.zeros_like(weight)
        self._steps = 0

    def direction(self, gradient: Tensor) -> Tensor:
        self._steps += 1
        self._mean.mul_(self._FIRST).add_(gradient, alpha=1 - self._FIRST)
        self._square.mul_(self._SECOND).addcmul_(gradient, gradient, value=1 - self._SECOND)
        first, second = (1 - beta**self._steps for beta in (self._FIRST, self._SECOND))
        return self._mean / first / ((self._square / second).sqrt() + self._SMALL)


UPDATES: dict[Optimiser, Callable[[Tensor, float], Update]] = {"sgd": Sgd, "adam": Adam}


class Descent:
    """Steps on weights, in place: the optimiser, weight decay, and a term that a method may add.

    ``untouched`` names those that no step changes: the running statistics of batch norms.
    """

    def __init__(
        self,
        weights: Params,
        training: Training,
        weight_decay: float = 0.0,
        untouched: Collection[str] = (),
    ) -> None:
        self._weights, self._weight_decay = weights, weight_decay
        self._untouched = untouched
        make, momentum = UPDATES[training.optimiser], training.momentum
        self._updates = [make(weight.detach(), momentum) for weight in weights.values()]

    @torch.no_grad()
    def step(
        self, gradient: Sequence[Tensor], learning_rate: float, extra: Params | None = None
    ) -> None:
        """One step along ``-gradient`` (in the order of the weights), which is overwritten."""
        for (name, weight), update, part in zip(
            self._weights.items(), self._updates, gradient, strict=True
        ):
            if name in self._untouched:
                continue
            if self._weight_decay:
                part.add_(weight, alpha=self._weight_decay)
            if extra:
                part.add_(extra[name])
            weight.sub_(update.direction(part), alpha=learning_rate)


def initial_weights(task: Task, rng: Rng) -> Params:
    """Newly initialised weights on the task's device, also of a pretrained network."""
    return to_device(task.model.newly_initialised(rng.torch()), task.device)
