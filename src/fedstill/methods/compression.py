"""From a wished compression rate to what may travel: the rate is weights / numbers sent."""

import math
from dataclasses import dataclass

import torch

from fedstill.errors import RequestError
from fedstill.types import Task


def coordinates(task: Task, rate: float) -> int:
    """How many coordinates of an update may travel at this rate."""
    size = task.model.size
    if rate > size:
        raise RequestError(
            f"method.compression: {rate:g} leaves no coordinate of the model's {size:,} weights; "
            f"at most {size} is possible"
        )
    return int(size / rate + 1e-9)


@dataclass(frozen=True)
class Example:
    """One synthetic example as it travels: the shapes of its input and of its label.

    A fixed label is whole numbers of four bytes, as many as a float has; a soft one has ``classes``
    floats in their place.
    """

    input: tuple[int, ...]
    label: tuple[int, ...]  # () or, with a label at every position, (length,); classes if soft
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
        places, classes = tuple(logits.shape[1:-1]), logits.shape[-1]
        return Example(shape, (*places, classes) if soft else places, classes, soft)

    @property
    def numbers(self) -> int:
        """How many travel."""
        return math.prod(self.input) + math.prod(self.label)

    def a_batch(self, task: Task, rate: float, batches: int) -> int:
        """How many examples each of ``batches`` may have at this rate."""
        largest = task.model.size / (batches * self.numbers)
        if rate > largest:
            fewer = f", {_rounded_down(largest * batches)} with method.batches=1"
            raise RequestError(
                f"method.compression: {rate:g} leaves less than one example a batch; at most "
                f"{_rounded_down(largest)} is possible with {batches} batches of examples of "
                f"{self.numbers} numbers{fewer if batches > 1 else ''}"
            )
        return int(largest / rate + 1e-9)


def _rounded_down(rate: float) -> str:
    return f"{math.floor(rate * 1000) / 1000:.3f}".rstrip("0").rstrip(".")
