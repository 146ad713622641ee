"""Losses and gradients over many records, in chunks that stay in the processor's cache."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from fedstill.records import Records
from fedstill.steps.written_out import first_order, written_out
from fedstill.types import Params, Task


def tracked(params: Params) -> Params:
    """A copy that requires gradients."""
    return {k: v.detach().clone().requires_grad_(True) for k, v in params.items()}


def batch_gradient(
    task: Task,
    params: Params,
    x: Tensor,
    y: Tensor,
    weights: Tensor | None = None,
    draws: torch.Generator | None = None,
    *,
    mixed: bool = False,
) -> tuple[list[Tensor], Tensor]:
    """Gradient (in the order of ``params``) and value of the mean loss over one batch.

    ``params`` must be tracked; ``weights`` multiply the records' losses. With ``draws`` the network
    is in training mode, and its random draws (dropout) come from there; without, in evaluation
    mode: for gradients that are compared with others. ``mixed``: in the run's ``precision``, for
    training; gradients that others are matched to are in single precision, as those are. One large
    batch is slower than its chunks in sequence: a chunk's activations are still in the cache when
    the backward pass reads them.
    """
    casting = task.casting() if mixed else nullcontext()
    exact = not mixed or task.precision == torch.float32
    by_hand = written_out(task, params, x, 1) if exact else None
    if by_hand is not None:
        found, value = first_order(by_hand, task.loss, x, y, weights)
        return list(found.values()), value
    leaves = list(params.values())
    gradient: list[Tensor] = []
    total: Tensor | None = None
    # A batch norm's statistics are those of the whole batch.
    chunk = max(1, len(x)) if task.model.statistics else task.chunk
    for part, labels, share in _chunks(x, y, weights, chunk):
        with casting:
            losses = task.loss(logits_of(task, params, part, draws), labels)
        loss = (losses if share is None else losses * share).sum() / len(x)
        # An unused weight (a bias before an instance norm) has gradient zero.
        parts = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        gradient = _accumulate(gradient, parts)
        value = loss.detach().float()
        total = value if total is None else total.add_(value)
    assert total is not None  # also of no records there is a chunk
    return gradient, total


def _chunks(
    x: Tensor, y: Tensor, weights: Tensor | None, chunk: int
) -> Iterable[tuple[Tensor, Tensor, Tensor | None]]:
    """Inputs, labels and weights of so many records at a time."""
    if len(x) <= chunk:
        return [(x, y, weights)]
    parts = x.split(chunk)
    shares = [None] * len(parts) if weights is None else weights.split(chunk)
    return zip(parts, y.split(chunk), shares, strict=True)


def logits_of(task: Task, params: Params, x: Tensor, draws: torch.Generator | None) -> Tensor:
    """The network's outputs in training mode with these random draws, or in evaluation mode."""
    model = task.model
    return model.apply(params, x) if draws is None else model.train_apply(params, x, draws)


def full_gradient(
    task: Task, params: Params, records: Records, draws: torch.Generator | None = None
) -> tuple[Params, Tensor]:
    """Gradient and value of the mean loss over all records, in one pass, in the run's precision.

    ``draws`` as in ``batch_gradient``.
    """
    weights = tracked(params)
    gradient: list[Tensor] = []
    total = torch.zeros((), device=task.device)
    own = task.model.written_out(len(records), 1)
    # The weights are brought into the form of the network's own derivatives once per part.
    size = task.chunk if own is None else max(task.chunk, 8 * own.chunk)
    for positions in torch.arange(len(records)).split(size):
        x, y = records.take(positions)
        parts, loss = batch_gradient(task, weights, x, y, draws=draws, mixed=True)
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
