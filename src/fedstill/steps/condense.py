"""Centralised gradient matching: images on which networks train as they would on the records.

Zhao et al., "Dataset Condensation with Gradient Matching" (DC), ICLR 2021; with DSA (Zhao and
Bilen, ICML 2021) through ``augment``. For each class, a real batch gives a target gradient, and
the pixels of that class are optimised until their gradient has the same direction.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedstill.steps.augment import draw_augmentation
from fedstill.steps.classes import ByClass, labels_of
from fedstill.steps.distil import PixelSteps, pixel_optimiser
from fedstill.steps.fit import fit
from fedstill.steps.gradient_matching import (
    GradientDistance,
    gradient_matching_pixels,
    weight_gradient,
)
from fedstill.steps.training import Training, initial_weights
from fedstill.types import ClientContext, Params


@dataclass(frozen=True)
class Condensation:
    """``networks`` newly initialised, each matched at ``matching_steps`` points of its training."""

    networks: int
    matching_steps: int
    between: Training  # from one point to the next
    pixels: PixelSteps
    distance: GradientDistance
    compiled: bool = False


def condense(
    ctx: ClientContext, by_class: ByClass, start: Tensor, plan: Condensation
) -> tuple[Tensor, float]:
    """The images (in slot form), and the distance per class averaged over all steps."""
    images = start.detach().clone()
    labels = labels_of(by_class, images.shape[1]).to(images.device)
    optimiser = pixel_optimiser(images, plan.pixels)
    steps = plan.networks * plan.matching_steps
    total, done = torch.zeros((), device=images.device), 0
    for network in range(plan.networks):
        rng = ctx.rng.at("network", network)
        weights = initial_weights(ctx.task, rng.at("init"))
        batches, changes = rng.at("batches").torch(), rng.at("augment").torch()
        for step in range(plan.matching_steps):
            images.grad, distance = class_wise_pixels(
                ctx, by_class, weights, images, plan, batches, changes
            )
            optimiser.step()
            total, done = total + distance / len(images), done + 1
            ctx.progress(done, steps)
            if step + 1 < plan.matching_steps:
                weights = fit(
                    ctx.task, weights, images.flatten(0, 1), labels, rng.at(step), plan.between
                )
    images.grad = None
    return images, max(0.0, float(total) / max(1, done))


def class_wise_pixels(
    ctx: ClientContext,
    by_class: ByClass,
    weights: Params,
    images: Tensor,
    plan: Condensation,
    batches: torch.Generator,
    changes: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Pixel gradient of the distances summed over the classes, and that sum.

    Each class has its own real batch and augmentation.
    """
    positions, slots = by_class.draw(plan.pixels.real_batch, batches)
    counts = torch.bincount(slots, minlength=len(images)).tolist()
    gradient = torch.empty_like(images)
    total = torch.zeros((), device=images.device)
    for synthetic, real, into in zip(images, positions.split(counts), gradient, strict=True):
        augment = draw_augmentation(plan.pixels.augment, changes, flip=plan.pixels.flip)
        x, y = ctx.records.take(real)
        target = weight_gradient(ctx.task, weights, augment(x), y, compiled=plan.compiled)
        labels = y[:1].expand(len(synthetic))
        pixels, distance = gradient_matching_pixels(
            ctx.task, weights, synthetic, labels, target, plan.distance, augment
        )
        into.copy_(pixels)
        total += distance
    return gradient, total
