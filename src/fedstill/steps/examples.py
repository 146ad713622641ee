"""Synthetic examples: their shapes for a task, and their initial values."""

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
        """The shapes that this task's model defines: the one place that derives them."""
        shape = task.model.continuous_shape or task.shape
        weights = {k: torch.zeros(s, device=task.device) for k, s in task.model.shapes.items()}
        with torch.no_grad():
            x = torch.zeros(1, *shape, device=task.device)
            logits = task.model.apply_continuous(weights, x)
        return Example(shape, tuple(logits.shape[1:-1]), logits.shape[-1], soft)

    @property
    def label(self) -> tuple[int, ...]:
        """Shape of the label as it is sent: integers of four bytes each, or floats."""
        return (*self.places, self.classes) if self.soft else self.places

    @property
    def numbers(self) -> int:
        """How many numbers are sent."""
        return math.prod(self.input) + math.prod(self.label)


def noise_examples(
    task: Task, example: Example, number: int, generator: torch.Generator, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Normal inputs, and labels that cycle through all classes: no record is used.

    ``scale``: their standard deviation.
    """
    x = scale * torch.randn(number, *example.input, generator=generator)
    labels = torch.arange(math.prod((number, *example.places))) % example.classes
    return x.to(task.device), labels.view(number, *example.places).to(task.device)


def record_examples(
    ctx: ClientContext, params: Params, number: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Random records and their labels; a client with too few repeats some of them.

    A record that is not real-valued (a text) is replaced by its embedding at ``params``.
    """
    if ctx.task.model.continuous_shape is None:
        check_images(ctx)
    rows = torch.randperm(len(ctx.records), generator=generator)
    x, labels = ctx.records.take(rows.repeat(-(-number // len(rows)))[:number])
    return ctx.task.model.embed(params, x), labels
