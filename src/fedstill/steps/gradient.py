"""Losses and gradients over many records, in chunks that stay in the processor's cache."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedstill.data.dataset import Records
from fedstill.types import Params, Task


def tracked(params: Params) -> Params:
    """A copy that autograd follows."""
    return {k: v.detach().clone().requires_grad_(True) for k, v in params.items()}


def batch_gradient(
    task: Task, params: Params, x: Tensor, y: Tensor, weights: Tensor | None = None
) -> tuple[list[Tensor], Tensor]:
    """Gradient (in the order of ``params``) and value of the mean loss over one batch.

    ``params`` must be tracked; ``weights`` multiply the records' losses. One large batch is
    slower than its chunks one after another: the activations of a chunk are still in the cache
    when the backward pass wants them.
    """
    leaves = list(params.values())
    gradient: list[Tensor] = []
    total = torch.zeros((), device=x.device)
    chunk = task.model.chunk
    shares = [None] * len(x.split(chunk)) if weights is None else weights.split(chunk)
    for part, labels, share in zip(x.split(chunk), y.split(chunk), shares, strict=True):
        losses = task.loss(task.model.apply(params, part), labels)
        loss = (losses if share is None else losses * share).sum() / len(x)
        # A weight that plays no part (a bias before an instance norm) has gradient zero.
        parts = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        gradient = _accumulate(gradient, parts)
        total += loss.detach()
    return gradient, total


def full_gradient(task: Task, params: Params, records: Records) -> tuple[Params, Tensor]:
    """Gradient and value of the mean loss over all records, in one pass."""
    weights = tracked(params)
    gradient: list[Tensor] = []
    total = torch.zeros((), device=task.device)
    for positions in torch.arange(len(records)).split(task.model.chunk):
        x, y = records.take(positions)
        parts, loss = batch_gradient(task, weights, x, y)
        share = len(positions) / len(records)
        gradient = _accumulate(gradient, [g * share for g in parts])
        total += loss * share
    return dict(zip(params, gradient, strict=True)), total


def _accumulate(total: list[Tensor], parts: Sequence[Tensor]) -> list[Tensor]:
    if not total:
        return list(parts)
    for sum_so_far, part in zip(total, parts, strict=True):
        sum_so_far.add_(part)
    return total


@dataclass(frozen=True)
class Examined:
    """How a model does on some records.

    ``accuracy`` is the share of right answers: one answer a record, or one a position of a text.
    ``by_group`` is the accuracy on each group's records, where the split has groups.
    """

    accuracy: float
    loss: float
    by_group: dict[int, float] = field(default_factory=dict)


@torch.no_grad()
def examine(task: Task, params: Params, records: Records) -> Examined:
    """One pass over these records: accuracy, mean loss, and accuracy by group."""
    right: list[Tensor] = []  # of each record: the share of its answers that are right
    loss = 0.0
    for positions in torch.arange(len(records)).split(task.model.chunk):
        x, y = records.take(positions)
        logits = task.model.inference(params, x)[-1]
        hits = (logits.argmax(-1) == y).cpu().double()
        right.append(hits.view(len(hits), -1).mean(1))
        loss += float(task.loss(logits, y).sum())
    shares, groups = torch.cat(right), records.split.groups
    by_group: dict[int, float] = {}
    if groups is not None:
        own = groups[records.index]
        counts, sums = own.bincount(), own.bincount(shares)
        by_group = {g: float(sums[g] / counts[g]) for g in counts.nonzero().flatten().tolist()}
    return Examined(float(shares.sum()) / len(records), loss / len(records), by_group)


def evaluate(task: Task, params: Params, records: Records) -> tuple[float, float]:
    """Accuracy and mean loss over these records."""
    found = examine(task, params, records)
    return found.accuracy, found.loss
