"""Gradients class by class: what a client of DistDD tells of its records.

``class_gradients`` is the only place where the method touches them.
"""

import torch
from torch import Tensor

from fedstill.steps.classes import ByClass
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.types import ClientContext, Params


def class_gradients(ctx: ClientContext, params: Params, most: int) -> tuple[Tensor, Params]:
    """The classes held, ascending, and the gradient of the mean loss on a batch of each.

    A batch has at most ``most`` records of the class. Every tensor of the gradients has a first
    dimension more than the weights: the classes held.
    """
    by_class = ByClass(ctx.records)
    positions, slots = by_class.draw(most, ctx.rng.at("batches").torch())
    weights = tracked(params)
    gradients: list[list[Tensor]] = []
    for slot in range(len(by_class.held)):
        x, y = ctx.records.take(positions[slots == slot])
        gradients.append(batch_gradient(ctx.task, weights, x, y)[0])
        ctx.progress(slot + 1, len(by_class.held))
    stacked = {name: torch.stack(own) for name, *own in zip(params, *gradients, strict=True)}
    return by_class.held.to(ctx.task.device), stacked
