"""Stochastic gradient descent on one client's records: the work of the FedAvg family."""

import itertools
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.types import ClientContext, Params


def steps_of(records: int, epochs: int, batch_size: int, steps: int | None = None) -> int:
    """How many steps ``local_sgd`` takes: ``steps``, or as many as the epochs have."""
    return steps or epochs * math.ceil(records / batch_size)


def _batches(ctx: ClientContext, batch_size: int) -> Iterator[Tensor]:
    """Positions of one batch after another, each epoch in an order of its own stream."""
    for epoch in itertools.count():
        generator = ctx.rng.at("order", epoch).torch()
        yield from torch.randperm(len(ctx.records), generator=generator).split(batch_size)


def local_sgd(
    ctx: ClientContext,
    start: Params,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    steps: int | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    correction: Callable[[Params], Params] | None = None,
) -> Params:
    """The weights after some epochs over the client's records, or after some ``steps``.

    ``correction(weights)`` is added to every gradient: FedProx's pull, SCAFFOLD's variates.
    """
    records = ctx.records
    weights = tracked(start)
    velocity = {k: torch.zeros_like(v) for k, v in start.items()} if momentum else {}
    number = steps_of(len(records), epochs, batch_size, steps)
    for step, positions in zip(range(number), _batches(ctx, batch_size), strict=False):
        x, y = records.take(positions)
        gradient, _ = batch_gradient(ctx.task, weights, x, y)
        with torch.no_grad():
            extra = correction(weights) if correction else {}
            for (name, weight), slope in zip(weights.items(), gradient, strict=True):
                if weight_decay:
                    slope.add_(weight, alpha=weight_decay)
                if extra:
                    slope.add_(extra[name])
                if momentum:
                    slope = velocity[name].mul_(momentum).add_(slope)
                weight.sub_(slope, alpha=learning_rate)
        ctx.progress(step + 1, number)
    return {k: v.detach() for k, v in weights.items()}
