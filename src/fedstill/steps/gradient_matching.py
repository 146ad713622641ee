"""Gradient matching: images whose weight gradient has the direction of a target gradient.

Zhao et al., "Dataset Condensation with Gradient Matching" (DC), ICLR 2021, and its successors.

A network that has its derivatives written out uses them on both sides (``written_out``). Of others
``torch.compile`` is used on the real side only. The synthetic side is differentiated twice, which
autograd cannot do through a compiled function; written with ``torch.func`` it can be compiled, but
then computes its first pass twice, and was slower than plain PyTorch (docs/measurements.md).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from fedstill.models.model import Model
from fedstill.steps.arithmetic import power_of_two
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.steps.matching import compiled_rows, compiler_found, padded, same
from fedstill.steps.written_out import matched_pixels, written_out
from fedstill.types import Params, Task

Criterion = Literal["cosine", "cosine+mse", "mse", "calibrated"]

# Rows without an entry above this count as zero: the gradient of a cosine grows with 1 / norm.
_TINY = 1e-20
# Chunks whose graph is kept for the second pass; later chunks are computed twice instead, so that
# memory does not grow with the number of images.
_KEPT_CHUNKS = 8


@dataclass(frozen=True)
class GradientDistance:
    """The distance between two gradients, tensor by tensor.

    A tensor is read as rows (one per output; a vector is one row). Each row adds 1 - cosine;
    ``normalize_rows`` divides the sum by the number of rows. ``mse_weight`` adds that much of the
    squared Euclidean distance. ``include_vectors`` off leaves biases and norm scales out of both;
    ``cosine`` off leaves the squared distance alone.
    """

    normalize_rows: bool = False
    include_vectors: bool = False
    mse_weight: float = 0.0
    cosine: bool = True


DC = GradientDistance()
FED_GLOSS = GradientDistance(normalize_rows=True, include_vectors=True, mse_weight=0.1)


def distance_of(
    criterion: Criterion, *, normalize_rows: bool, include_vectors: bool, mse_weight: float
) -> GradientDistance:
    """What a client minimises under this criterion.

    ``calibrated`` is ``cosine`` to the client; the rest of it is the server's (Fed-GLOSS,
    appendix D.1), which needs the norms of the real gradient. They reveal much about the records
    and would break any privacy guarantee: the criterion is for analysis only.
    """
    with_mse = criterion in ("cosine+mse", "mse")
    return GradientDistance(
        normalize_rows, include_vectors, mse_weight if with_mse else 0.0, criterion != "mse"
    )


def grad_distance(
    real: Sequence[Tensor], synthetic: Sequence[Tensor], how: GradientDistance = DC
) -> Tensor:
    """How far ``synthetic`` is from ``real``: the sum over the tensors. Differentiable.

    A row that is zero on either side has no direction: it adds 1 and its gradient is zero.
    """
    total = synthetic[0].new_zeros(())
    for a, b in zip(real, synthetic, strict=True):
        if a.dim() == 1 and not how.include_vectors:
            continue
        a, b = (g.reshape(1, -1) if g.dim() == 1 else g.flatten(1) for g in (a, b))
        if how.cosine:
            apart = (1 - _cosines(a, b)).sum()
            total = total + (apart / len(a) if how.normalize_rows else apart)
        if how.mse_weight:
            total = total + how.mse_weight * (a - b).square().sum()
    return total


def _cosines(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of each pair of rows; 0, with gradient 0, where one of them is zero."""
    sizes = [rows.detach().abs().amax(1, keepdim=True) for rows in (a, b)]
    there = (sizes[0] > _TINY) & (sizes[1] > _TINY)
    # The cosine does not depend on the scale, but squares of very short or long rows would under-
    # or overflow. Scaling by a power of two is exact.
    a, b = (
        torch.where(there, rows / torch.where(there, power_of_two(size), 1.0), 0.0)
        for rows, size in zip((a, b), sizes, strict=True)
    )
    here = there.squeeze(1)
    lengths = [torch.where(here, rows.square().sum(1), 1.0).sqrt() for rows in (a, b)]
    return (a * b).sum(1) / lengths[0] / lengths[1]


def weight_gradient(
    task: Task, params: Params, x: Tensor, y: Tensor, *, compiled: bool = False
) -> list[Tensor]:
    """Gradient of the mean loss over one batch: what images are matched to."""
    # On a processor, derivatives that are written out gain nothing from the compiler.
    own = task.device.type == "cpu" and task.model.written_out(len(x), 1) is not None
    if own or not (compiled and compiler_found()):
        return batch_gradient(task, tracked(params), x, y)[0]
    program, size = _compiled(task.model, task.loss), compiled_rows(len(x), task.chunk)
    shares = x.new_full((len(x),), 1 / len(x))
    total = [torch.zeros_like(v) for v in params.values()]
    for chunk in zip(x.split(size), y.split(size), shares.split(size), strict=True):
        # One shape for all, so that little is compiled: the padding rows have weight 0.
        gradient = program(params, *(padded(part, size) for part in chunk))
        for sum_so_far, part in zip(total, gradient.values(), strict=True):
            sum_so_far.add_(part)
    return total


@lru_cache(maxsize=8)
def _compiled(model: Model, loss: Callable[[Tensor, Tensor], Tensor]) -> Any:
    def total(params: Params, x: Tensor, y: Tensor, shares: Tensor) -> Tensor:
        return (loss(model.apply(params, x), y) * shares).sum()

    return torch.compile(torch.func.grad(total), fullgraph=True, dynamic=False)


def gradient_matching_pixels(
    task: Task,
    params: Params,
    images: Tensor,
    labels: Tensor,
    target: Sequence[Tensor],
    how: GradientDistance = DC,
    augment: Callable[[Tensor], Tensor] = same,
) -> tuple[Tensor, Tensor]:
    """Pixel gradient of the distance between ``target`` and the images' weight gradient.

    In chunks: first the whole weight gradient g, then the gradient v of the distance at g, then
    for each chunk the pixel gradient of <grad_w loss(chunk), v> (a vector-Jacobian product); g is
    the sum of the chunks' gradients, so this gives the same result.
    """

    def distance_at(gradient: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        return _distance_and_gradient(target, gradient, how)

    by_hand = written_out(task, params, images, 2)
    if by_hand is not None:
        kept = _KEPT_CHUNKS * task.chunk
        return matched_pixels(by_hand, task.loss, images, labels, augment, distance_at, kept)
    weights = tracked(params)
    leaves = list(weights.values())

    def chunk_gradient(x: Tensor, y: Tensor, *, twice: bool) -> tuple[Tensor | None, ...]:
        loss = task.loss(task.model.apply(weights, augment(x)), y).sum() / len(images)
        return torch.autograd.grad(loss, leaves, create_graph=twice, allow_unused=True)

    total = [torch.zeros_like(leaf) for leaf in leaves]
    waiting: deque[tuple[Tensor, tuple[Tensor | None, ...]]] = deque()
    parts = list(zip(images.split(task.chunk), labels.split(task.chunk), strict=True))
    for number, (part, y) in enumerate(parts):
        keep = number < _KEPT_CHUNKS
        x = part.detach().requires_grad_(keep)
        gradient = chunk_gradient(x, y, twice=keep)
        for sum_so_far, g in zip(total, gradient, strict=True):
            if g is not None:
                sum_so_far.add_(g.detach())
        if keep:
            waiting.append((x, gradient))
    distance, vector = distance_at(total)
    pixels = []
    for part, y in parts:
        if waiting:
            x, gradient = waiting.popleft()
        else:
            x = part.detach().requires_grad_(True)
            gradient = chunk_gradient(x, y, twice=True)
        pairs = [(g, v) for g, v in zip(gradient, vector, strict=True) if g is not None]
        found = torch.autograd.grad([g for g, _ in pairs], x, [v for _, v in pairs])
        pixels.append(found[0])
    return torch.cat(pixels), distance


def _distance_and_gradient(
    target: Sequence[Tensor], synthetic: Sequence[Tensor], how: GradientDistance
) -> tuple[Tensor, Sequence[Tensor]]:
    """The distance, and its gradient with respect to ``synthetic``."""
    leaves = [g.detach().requires_grad_(True) for g in synthetic]
    distance = grad_distance(target, leaves, how)
    gradient = torch.autograd.grad(distance, leaves, allow_unused=True, materialize_grads=True)
    return distance.detach(), gradient
