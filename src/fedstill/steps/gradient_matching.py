"""Gradient matching: images whose weight gradient points where another one does.

Zhao et al., "Dataset Condensation with Gradient Matching", ICLR 2021, and what came of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.types import Params, Task


@dataclass(frozen=True)
class GradientDistance:
    """The distance of two gradients, a tensor at a time.

    A tensor is read as rows (one for each output; a vector is one row). Each row adds 1 - cosine;
    ``normalize_rows`` divides the sum by the number of rows. ``mse_weight`` adds that much of the
    squared Euclidean distance. ``include_vectors`` off leaves biases and norm scales out of both.
    """

    normalize_rows: bool = False
    include_vectors: bool = False
    mse_weight: float = 0.0


DC = GradientDistance()
FED_GLOSS = GradientDistance(normalize_rows=True, include_vectors=True, mse_weight=0.1)


def grad_distance(
    real: Sequence[Tensor], synthetic: Sequence[Tensor], how: GradientDistance = DC
) -> Tensor:
    """How far ``synthetic`` is from ``real``: the sum over the tensors. Differentiable.

    A row that is zero on either side has no direction: it counts 1 and pulls at nothing.
    """
    total = synthetic[0].new_zeros(())
    for a, b in zip(real, synthetic, strict=True):
        if a.dim() == 1 and not how.include_vectors:
            continue
        a, b = (g.reshape(1, -1) if g.dim() == 1 else g.flatten(1) for g in (a, b))
        cosines = _cosines(a, b)
        apart = (1 - cosines).sum()
        total = total + (apart / len(a) if how.normalize_rows else apart)
        if how.mse_weight:
            total = total + how.mse_weight * (a - b).square().sum()
    return total


def _cosines(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of each pair of rows; 0, with gradient 0, where one of them is zero."""
    lengths = []
    there = torch.ones(len(a), dtype=torch.bool, device=a.device)
    for rows in (a, b):
        square = rows.square().sum(1)
        there = there & (square > 0)
        lengths.append(torch.where(square > 0, square, 1.0).sqrt())
    cosine = (a * b).sum(1) / lengths[0] / lengths[1]
    return torch.where(there, cosine, 0.0)


def gradient_matching_pixels(
    task: Task,
    params: Params,
    images: Tensor,
    labels: Tensor,
    target: Sequence[Tensor],
    how: GradientDistance = DC,
) -> tuple[Tensor, Tensor]:
    """Pixel gradient of the distance between ``target`` and the images' own weight gradient.

    In chunks: the whole gradient g first, then the distance's slope v at g, and with it the
    pixel gradient of <grad_w loss(chunk), v> for each chunk, which adds up to the same.
    """
    weights = tracked(params)
    gradient, _ = batch_gradient(task, weights, images, labels)
    own = [g.requires_grad_(True) for g in gradient]
    distance = grad_distance(target, own, how)
    slopes = torch.autograd.grad(distance, own, allow_unused=True, materialize_grads=True)
    pixels = torch.empty_like(images)
    size = task.model.chunk
    for part, of, into in zip(
        images.split(size), labels.split(size), pixels.split(size), strict=True
    ):
        x = part.detach().requires_grad_(True)
        loss = task.loss(task.model.apply(weights, x), of).sum() / len(images)
        steps = torch.autograd.grad(
            loss, list(weights.values()), create_graph=True, allow_unused=True
        )
        along = [(g * v).sum() for g, v in zip(steps, slopes, strict=True) if g is not None]
        into.copy_(torch.autograd.grad(torch.stack(along).sum(), x)[0])
    return pixels, distance.detach()
