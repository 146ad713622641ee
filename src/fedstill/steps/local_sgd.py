"""Stochastic gradient descent on one client's records: the work of the FedAvg family."""

import math
from collections.abc import Callable

import torch

from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.types import ClientContext, Params


def steps_of(records: int, epochs: int, batch_size: int) -> int:
    """How many steps ``local_sgd`` takes."""
    return epochs * math.ceil(records / batch_size)


def local_sgd(
    ctx: ClientContext,
    start: Params,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    correction: Callable[[Params], Params] | None = None,
) -> Params:
    """The weights after some epochs over the client's records, in an order of its own stream.

    ``correction(weights)`` is added to every gradient: FedProx's pull, SCAFFOLD's variates.
    """
    records = ctx.records
    weights = tracked(start)
    velocity = {k: torch.zeros_like(v) for k, v in start.items()} if momentum else {}
    steps, step = steps_of(len(records), epochs, batch_size), 0
    for epoch in range(epochs):
        order = torch.randperm(len(records), generator=ctx.rng.at("order", epoch).torch())
        for positions in order.split(batch_size):
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
            step += 1
            ctx.progress(step, steps)
    return {k: v.detach() for k, v in weights.items()}
