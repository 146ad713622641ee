"""How many numbers a requested compression ratio allows: the ratio is weights / numbers sent."""

import math

from fedstill.errors import RequestError
from fedstill.steps.examples import Example
from fedstill.types import Task


def coordinates(task: Task, rate: float) -> int:
    """How many coordinates of an update may be sent at this rate."""
    size = task.model.size
    if rate > size:
        raise RequestError(
            f"method.compression: {rate:g} leaves no coordinate of the model's {size:,} weights; "
            f"at most {size} is possible"
        )
    return int(size / rate + 1e-9)


def examples_per_batch(
    task: Task, example: Example, rate: float, batches: int, besides: int = 0
) -> int:
    """How many synthetic examples each of ``batches`` may hold at this rate, if ``besides``
    numbers are sent with each."""
    largest = task.model.size / (batches * (example.numbers + besides))
    if rate > largest:
        fewer = f", {_rounded_down(largest * batches)} with method.batches=1"
        raise RequestError(
            f"method.compression: {rate:g} leaves less than one example per batch; at most "
            f"{_rounded_down(largest)} is possible with {batches} batches of examples of "
            f"{example.numbers} numbers{fewer if batches > 1 else ''}"
        )
    return int((task.model.size / (batches * rate) - besides) / example.numbers + 1e-9)


def _rounded_down(rate: float) -> str:
    return f"{math.floor(rate * 1000) / 1000:.3f}".rstrip("0").rstrip(".")
