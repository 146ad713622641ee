"""Gradients per class: what a client of DistDD sends about its records, and what its server makes
of them.

Without privacy only ``class_gradients`` reads the records; with privacy only the mechanism does,
called by ``released_class_gradients``. ``match_class`` sees the gradients alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedstill.private import Private
from fedstill.steps.classes import ByClass
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.steps.gradient_matching import GradientDistance, gradient_matching_pixels
from fedstill.steps.per_record import weight_gradients
from fedstill.types import ClientContext, Params, Task


def class_gradients(ctx: ClientContext, params: Params, most: int) -> tuple[Tensor, Params]:
    """The classes held, ascending, and the gradient of the mean loss on a batch of each.

    A batch has at most ``most`` records of the class. Every gradient tensor has one leading
    dimension more than its weight: the classes held.
    """
    by_class = ByClass(ctx.records)
    positions, slots = by_class.draw(most, ctx.rng.at("batches").torch())
    weights = tracked(params)
    gradients: list[list[Tensor]] = []
    for slot in range(len(by_class.held)):
        x, y = ctx.records.take(positions[slots == slot])
        gradients.append(batch_gradient(ctx.task, weights, x, y)[0])
        ctx.progress(slot + 1, len(by_class.held))
    stacked = {name: torch.stack(parts) for name, *parts in zip(params, *gradients, strict=True)}
    return by_class.held.to(ctx.task.device), stacked


def released_class_gradients(task: Task, params: Params, door: Private) -> tuple[Tensor, Params]:
    """The same through the private door: one access, for the classes that are publicly held.

    A class's noisy sum is divided by its noisy count, but never by less than an even share of the
    expected batch. A count near or below zero would amplify the sum's noise; with the even share a
    class with few records, or none, has little weight in the mean over the clients.
    """
    release = door.noisy_class_sums(weight_gradients(task, params))
    least = max(1.0, door.expected_batch / len(door.classes))
    counts = release.counts.clamp(min=least)
    means = {k: v / counts.view(-1, *[1] * (v.dim() - 1)) for k, v in release.sums.items()}
    return door.classes.to(task.device), means


@dataclass(frozen=True)
class ClassMatching:
    """How the images of a class are moved towards the class's gradient."""

    distance: GradientDistance
    steps: int
    learning_rate: float
    momentum: float
    batch: int | None = None  # images per step, drawn at random; None: all


def match_class(
    task: Task,
    params: Params,
    images: Tensor,
    label: int,
    target: Params,
    how: ClassMatching,
    generator: torch.Generator,
) -> tuple[Tensor, float]:
    """The images of one class after the pixel steps, and the distance before them.

    Images that are not in a step's batch have pixel gradient zero in that step.
    """
    matched, velocity = images.clone(), torch.zeros_like(images)
    wanted = [target[name] for name in params]
    labels = torch.full((len(images),), label, device=images.device)
    distances: list[Tensor] = []
    for _ in range(how.steps):
        rows = _some(len(images), how.batch, generator).to(images.device)
        found, distance = gradient_matching_pixels(
            task, params, matched[rows], labels[rows], wanted, how.distance
        )
        velocity.mul_(how.momentum).index_add_(0, rows, found)
        matched -= how.learning_rate * velocity
        distances.append(distance)
    return matched, float(distances[0])


def _some(number: int, batch: int | None, generator: torch.Generator) -> Tensor:
    """``batch`` random positions of ``number``, or all of them; ascending."""
    if batch is None or batch >= number:
        return torch.arange(number)
    return torch.randperm(number, generator=generator)[:batch].sort().values
