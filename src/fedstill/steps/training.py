"""How a network is trained: the settings, the learning-rate schedules and the update rules."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import compress
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
Tensors = list[Tensor]

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
    """The direction of a step for each weight, from the gradients, which may be overwritten."""

    def directions(self, gradients: Tensors) -> Tensors: ...


class Sgd:
    """The gradient itself, with momentum if there is any."""

    def __init__(self, weights: Tensors, momentum: float) -> None:
        self._momentum = momentum
        self._velocities = [torch.zeros_like(w) for w in weights] if momentum else []

    def directions(self, gradients: Tensors) -> Tensors:
        if not self._velocities:
            return gradients
        torch._foreach_mul_(self._velocities, self._momentum)
        torch._foreach_add_(self._velocities, gradients)
        return self._velocities


class Adam:
    """Kingma and Ba, ICLR 2015, with their values; SGD's momentum is not used."""

    _FIRST, _SECOND, _SMALL = 0.9, 0.999, 1e-8

    def __init__(self, weights: Tensors, momentum: float) -> None:
        self._means = [torch.zeros_like(w) for w in weights]
        self._squares = [torch.zeros_like(w) for w in weights]
        self._steps = 0

    def directions(self, gradients: Tensors) -> Tensors:
        self._steps += 1
        torch._foreach_mul_(self._means, self._FIRST)
        torch._foreach_add_(self._means, gradients, alpha=1 - self._FIRST)
        torch._foreach_mul_(self._squares, self._SECOND)
        torch._foreach_addcmul_(self._squares, gradients, gradients, 1 - self._SECOND)
        first, second = (1 - beta**self._steps for beta in (self._FIRST, self._SECOND))
        sizes = torch._foreach_div(self._squares, second)
        torch._foreach_sqrt_(sizes)
        torch._foreach_add_(sizes, self._SMALL)
        directions = torch._foreach_div(self._means, first)
        torch._foreach_div_(directions, sizes)
        return list(directions)


UPDATES: dict[Optimiser, Callable[[Tensors, float], Update]] = {"sgd": Sgd, "adam": Adam}


class Descent:
    """Steps on weights, in place: the optimiser, weight decay, and a term that a method may add.

    ``untouched`` names those that no step changes: the running statistics of batch norms. Each
    operation is one call for all weights: a small network's take less time than their calls.
    """

    def __init__(
        self,
        weights: Params,
        training: Training,
        weight_decay: float = 0.0,
        untouched: Collection[str] = (),
    ) -> None:
        self._weight_decay = weight_decay
        self._touched = [name not in untouched for name in weights]
        self._names = list(compress(weights, self._touched))
        # Detached, of the same memory: no step is part of a graph.
        found = [weights[name] for name in self._names]
        self._weights = [w.detach() if w.requires_grad else w for w in found]
        self._update = UPDATES[training.optimiser](self._weights, training.momentum)

    def step(
        self, gradient: Sequence[Tensor], learning_rate: float, extra: Params | None = None
    ) -> None:
        """One step along ``-gradient`` (in the order of the weights), which is overwritten."""
        parts = [p for p, touched in zip(gradient, self._touched, strict=True) if touched]
        if not parts:
            return
        if self._weight_decay:
            torch._foreach_add_(parts, self._weights, alpha=self._weight_decay)
        if extra:
            torch._foreach_add_(parts, [extra[name] for name in self._names])
        directions = self._update.directions(parts)
        torch._foreach_sub_(self._weights, directions, alpha=learning_rate)


def initial_weights(task: Task, rng: Rng) -> Params:
    """Newly initialised weights on the task's device, also of a pretrained network."""
    return to_device(task.model.newly_initialised(rng.torch()), task.device)
