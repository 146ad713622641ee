"""Synthetic examples: what one looks like for a task, and what some start from."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstill.steps.classes import check_images
from fedstill.types import ClientContext, Params, Task


@dataclass(frozen=True)
class Example:
    """The shapes of one synthetic example: its input and its label.

    A label is one class, or one at each of several ``places`` (the positions of a text). ``soft``:
    a distribution over the classes instead.
    """

    input: tuple[int, ...]
    places: tuple[int, ...]
    classes: int
    soft: bool

    @staticmethod
    def of(task: Task, *, soft: bool) -> "Example":
        """What this task's model says: the one place that asks where synthetic inputs live."""
        shape = task.model.continuous_shape or task.shape
        weights = {k: torch.zeros(s, device=task.device) for k, s in task.model.shapes.items()}
        with torch.no_grad():
            x = torch.zeros(1, *shape, device=task.device)
            logits = task.model.apply_continuous(weights, x)
        return Example(shape, tuple(logits.shape[1:-1]), logits.shape[-1], soft)

    @property
    def label(self) -> tuple[int, ...]:
        """Shape of the label as it travels: whole numbers of four bytes each, or floats."""
        return (*self.places, self.classes) if self.soft else self.places

    @property
    def numbers(self) -> int:
        """How many numbers travel."""
        return math.prod(self.input) + math.prod(self.label)


def noise_examples(
    task: Task, example: Example, number: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Standard normal inputs and labels that go round all classes: nothing of anyone's records."""
    x = torch.randn(number, *example.input, generator=generator)
    labels = torch.arange(math.prod((number, *example.places))) % example.classes
    return x.to(task.device), labels.view(number, *example.places).to(task.device)


def record_examples(
    ctx: ClientContext, params: Params, number: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Random records and their labels; a client with too few gives every one, and some again.

    A record that is not real numbers itself (a text) is taken as its embedding at ``params``.
    """
    if ctx.task.model.continuous_shape is None:
        check_images(ctx)
    rows = torch.randperm(len(ctx.records), generator=generator)
    x, labels = ctx.records.take(rows.repeat(-(-number // len(rows)))[:number])
    return ctx.task.model.embed(params, x), labels
