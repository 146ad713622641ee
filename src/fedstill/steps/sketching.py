"""Class means of random networks' features, and images that have the same means.

A record's vector: for each of R networks and each of its last L blocks the flattened outputs,
divided by their norm, all of them concatenated and divided by sqrt(R L). Its norm is 1, whatever R
and L are.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstill.features import unit
from fedstill.records import Records
from fedstill.rng import Rng
from fedstill.steps.matching import classes_at_once
from fedstill.steps.training import SCHEDULES
from fedstill.types import Params, Task


@dataclass(frozen=True)
class Networks:
    """R networks with the same architecture; ``blocks`` outputs of each are used, the last ones."""

    task: Task
    weights: tuple[Params, ...]
    blocks: int

    def vectors(self, params: Params, x: Tensor, *, gradient: bool = False) -> Tensor:
        """The part of one network in the vectors of these inputs, [N, size]."""
        model = self.task.model
        forward = model.features if gradient else model.inference
        outputs = forward(params, x)[:-1][-self.blocks :]
        scale = math.sqrt(len(self.weights) * len(outputs))
        return torch.cat([unit(out.flatten(1)) for out in outputs], 1) / scale

    @property
    def size(self) -> int:
        """Numbers in the part of one network."""
        with torch.no_grad():
            blank = torch.zeros(1, *self.task.shape, device=self.task.device)
            return self.vectors(self.weights[0], blank).shape[1]


@dataclass(frozen=True)
class Sketched:
    """Maps records to their vectors, times a factor: [N, R, size]."""

    networks: Networks
    factor: float = 1.0

    @property
    def floats(self) -> int:
        return self.networks.size * len(self.networks.weights)

    @torch.no_grad()
    def __call__(self, records: Records) -> Params:
        x, _ = records.all()
        parts = [
            torch.cat([self.networks.vectors(w, part) for part in x.split(self._chunk)])
            for w in self.networks.weights
        ]
        return {"sum": torch.stack(parts, 1) * self.factor}

    @property
    def _chunk(self) -> int:
        return self.networks.task.chunk


def sketch_sums(records: Records, networks: Networks, classes: int) -> tuple[Tensor, Tensor]:
    """Sums [classes, R, size] and counts [classes] over all records, without privacy."""
    vectors, device = Sketched(networks), records.device
    shape = (classes, len(networks.weights), networks.size)
    sums = torch.zeros(shape, dtype=torch.float64, device=device)
    for part in records.index.split(256):
        few = Records(records.split, part, records.scaling, device)
        sums.index_add_(0, few.labels.to(device), vectors(few)["sum"].double())
    return sums, torch.bincount(records.labels, minlength=classes).to(sums)


@dataclass(frozen=True)
class Distilling:
    """How images are optimised: Adam with a cosine schedule, one network per step."""

    steps: int
    learning_rate: float


def distil_images(
    networks: Networks,
    targets: Tensor,
    start: Tensor,
    how: Distilling,
    rng: Rng,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Tensor, float]:
    """Images [classes, images per class, ...] whose mean vectors approach ``targets`` [classes, R,
    size], and the mean squared distance over the last steps."""
    images = start.detach().clone()
    optimiser = torch.optim.Adam([images], lr=how.learning_rate)
    order = rng.at("networks").torch()
    recent: list[Tensor] = []
    sequence: Sequence[int] = ()
    for step in range(how.steps):
        if not sequence:
            sequence = torch.randperm(len(networks.weights), generator=order).tolist()
        network, *sequence = sequence
        for group in optimiser.param_groups:
            group["lr"] = how.learning_rate * SCHEDULES["cosine"](step / how.steps)
        images.grad, loss = _gradient(networks, network, images, targets[:, network])
        optimiser.step()
        recent = [*recent[-len(networks.weights) + 1 :], loss]
        if progress:
            progress(step + 1, how.steps)
    images.grad = None
    return images, sum(torch.stack(recent).tolist()) / len(recent) if recent else 0.0


def _gradient(
    networks: Networks, network: int, images: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """The pixel gradient of the squared distance between mean vectors and targets of one network,
    times R: each network's part of a vector has length 1 / sqrt(R)."""
    at_once = classes_at_once(networks.task, images.shape[1])
    gradient = torch.empty_like(images)
    total, scale = images.new_zeros((), dtype=torch.float64), len(networks.weights)
    parts = zip(images.split(at_once), gradient.split(at_once), targets.split(at_once), strict=True)
    for part, into, target in parts:
        x = part.detach().requires_grad_(True)
        made = networks.vectors(networks.weights[network], x.flatten(0, 1), gradient=True)
        distance = (made.unflatten(0, x.shape[:2]).mean(1) - target).square().sum() * scale
        into.copy_(torch.autograd.grad(distance, x)[0])
        total += distance.detach()
    return gradient, total / len(images)
