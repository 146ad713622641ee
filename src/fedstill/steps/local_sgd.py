"""Stochastic gradient descent on one client's records: the work of the FedAvg family."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from fedstill.private import Private
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.steps.per_record import weight_gradients
from fedstill.steps.training import Descent, Training
from fedstill.types import ClientContext, Params


def steps_of(records: int, epochs: int, batch_size: int, steps: int | None = None) -> int:
    """How many steps ``local_sgd`` takes: ``steps``, or those of the epochs."""
    return steps or epochs * math.ceil(records / batch_size)


def private_steps(epochs: int, rate: float, steps: int | None = None) -> int:
    """The same with privacy on: in one epoch each record is sampled once on average."""
    return steps or max(1, round(epochs / rate))


def local_sgd(
    ctx: ClientContext,
    start: Params,
    training: Training,
    *,
    steps: int | None = None,
    weight_decay: float = 0.0,
    correction: Callable[[Params], Params] | None = None,
) -> Params:
    """The weights after ``training.epochs`` over the client's records, or after ``steps``.

    ``correction(weights)`` is added to every gradient: FedProx's proximal term, SCAFFOLD's control
    variates.

    With privacy on, a step's gradient is a noisy mean of the clipped gradients of a Poisson sample
    (``batch_size`` is not used), and an epoch has 1 / q steps. All of these numbers are public.
    """
    weights = tracked(start)
    trained = {k: v.detach() for k, v in weights.items()}  # the same memory, outside of any graph
    descent = Descent(trained, training, weight_decay, ctx.task.model.statistics)
    if ctx.private is None:
        number = steps_of(len(ctx.records), training.epochs, training.batch_size, steps)
        gradients = _batch_gradients(ctx, weights, training.batch_size)
    else:
        number = private_steps(training.epochs, ctx.private.rate, steps)
        gradients = _noisy_gradients(ctx, ctx.private, weights)
    # The range comes first: when it ends, no further gradient is computed (and charged).
    for step, gradient in zip(range(number), gradients, strict=False):
        extra = correction(trained) if correction else None
        descent.step(gradient, training.rate(step, number), extra)
        ctx.progress(step + 1, number)
    return trained


def _batch_gradients(
    ctx: ClientContext, weights: Params, batch_size: int
) -> Iterator[list[Tensor]]:
    """The gradient at the current weights on each batch, epoch after epoch."""
    records = ctx.records
    draws = ctx.rng.at("dropout").torch() if ctx.task.model.draws_in_training else None
    for epoch in itertools.count():
        for positions in _batches(ctx, epoch, batch_size):
            x, y = records.take(positions)
            yield batch_gradient(ctx.task, weights, x, y, draws=draws, mixed=True)[0]


def _batches(ctx: ClientContext, epoch: int, batch_size: int) -> Sequence[Tensor | slice]:
    """Positions of the records of each batch. A single batch needs no order: with ten thousand
    small clients, drawing one would be a fortieth of the round."""
    number = len(ctx.records)
    if number <= batch_size:
        return (slice(None),)
    order = torch.randperm(number, generator=ctx.rng.at("order", epoch).torch())
    batches: Sequence[Tensor] = order.split(batch_size)
    return batches


def _noisy_gradients(
    ctx: ClientContext, private: Private, weights: Params
) -> Iterator[list[Tensor]]:
    """The same through the private door: one access per step."""
    for step in itertools.count():
        gradients = weight_gradients(ctx.task, weights, draws=ctx.rng.at("dropout", step))
        yield list(private.noisy_mean(gradients).values())
