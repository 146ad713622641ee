"""Unrolled SGD: the gradient of a loss after some steps with respect to the steps' batches.

    w_{i+1} = w_i - eta_i grad_w L(x_i, y_i; w_i)        i = 0 .. m-1

Backpropagating through all m steps at once would keep m graphs in memory. Here the weights are
kept and each step's graph is rebuilt in the backward pass. With v the gradient of the loss at
w_{i+1}:

    d x_i    = -eta_i grad_x <grad_w L, v>      d y_i the same, for labels that are distributions
    d eta_i  = -<grad_w L, v>
    v       <- v - eta_i grad_w <grad_w L, v>   the gradient at w_i

Memory: one chunk's graph and m weight vectors; where these would exceed ``KEPT_BYTES``, only the
weights before every sqrt(m)-th step are kept and the steps between are recomputed (2 sqrt(m)
vectors, one more forward pass). Either way the result has the same bits.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstill.steps.gradient import tracked
from fedstill.steps.training import Descent, Optimiser, Training
from fedstill.steps.written_out import first_order, second_order, written_out
from fedstill.types import Params, Task

KEPT_BYTES = 2**28

Rates = float | Sequence[float]  # one learning rate for all steps, or one per step


@dataclass(frozen=True)
class Batches:
    """Batches for ``len`` steps: inputs [m, b, ...], and labels [m, b, ...] with them.

    Inputs are real-valued, what the model's ``apply_continuous`` takes. Labels are class numbers
    or distributions over the classes.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)

    @property
    def labels(self) -> Tensor:
        """Labels as losses take them: class numbers are sent in fewer bytes."""
        return self.y if self.y.is_floating_point() else self.y.long()

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """A copy of this step's batch: with the same alignment it is rounded the same."""
        return self.x[step].clone(), self.labels[step].clone()


@dataclass(frozen=True)
class Path:
    """An unrolled path: the weights before every ``stride``-th step, and at the end."""

    kept: tuple[Params, ...]
    stride: int
    end: Params


@dataclass(frozen=True)
class Gradients:
    """Of a loss at the end of a path. ``y`` is zero where labels are class numbers."""

    x: Tensor
    y: Tensor
    learning_rates: tuple[float, ...]  # one per step
    start: Params

    @property
    def learning_rate(self) -> float:
        """With respect to one learning rate of all steps."""
        return sum(reversed(self.learning_rates), 0.0)


def sgd_steps(task: Task, start: Params, batches: Batches, rates: Rates) -> Params:
    """The weights after one plain SGD step on each batch. The same bits as ``unroll(...).end``."""
    weights = start
    for step, rate in enumerate(_per_step(rates, batches)):
        weights = _step(task, weights, batches, step, rate)
    return weights


def adam_steps(task: Task, start: Params, batches: Batches, learning_rate: float) -> Params:
    """The weights after one step of Adam on each batch."""
    weights = {k: w.clone() for k, w in start.items()}
    descent = Descent(weights, Training(learning_rate, optimiser="adam"))
    for step in range(len(batches)):
        gradient = _gradient(task, weights, batches, step)
        descent.step(list(gradient.values()), learning_rate)
    return weights


STEPS: dict[Optimiser, Callable[[Task, Params, Batches, float], Params]] = {
    "sgd": sgd_steps,
    "adam": adam_steps,
}


def unroll(
    task: Task, start: Params, batches: Batches, rates: Rates, stride: int | None = None
) -> Path:
    """The same steps, with what ``backward`` needs. ``stride``: chosen by memory if left out."""
    stride = stride or _stride(start, len(batches))
    weights, kept = start, []
    for step, rate in enumerate(_per_step(rates, batches)):
        if step % stride == 0:
            kept.append(weights)
        weights = _step(task, weights, batches, step, rate)
    return Path(tuple(kept), stride, weights)


def backward(task: Task, path: Path, batches: Batches, rates: Rates, at_end: Params) -> Gradients:
    """The gradients of a loss whose gradient at the path's end is ``at_end``."""
    by_x = torch.zeros_like(batches.x)
    soft = batches.y.is_floating_point()
    by_y = torch.zeros_like(batches.y, dtype=batches.y.dtype if soft else batches.x.dtype)
    per_step, v = _per_step(rates, batches), at_end
    by_rate = [0.0] * len(batches)
    for first, weights in reversed(list(enumerate(path.kept))):
        steps = range(first * path.stride, min((first + 1) * path.stride, len(batches)))
        before = [weights]
        for step in steps[:-1]:
            before.append(_step(task, before[-1], batches, step, per_step[step]))
        for step in reversed(steps):
            x, y = batches.at(step)
            rate = per_step[step]
            step_x, step_y, step_w, along = _second_order(task, before.pop(), x, y, v)
            by_x[step] = step_x.mul_(-rate)
            if soft:
                by_y[step] = step_y.mul_(-rate)
            by_rate[step] = -along
            v = {k: torch.sub(part, step_w[k], alpha=rate) for k, part in v.items()}
    return Gradients(by_x, by_y, tuple(by_rate), v)


def _per_step(rates: Rates, batches: Batches) -> Sequence[float]:
    return [rates] * len(batches) if isinstance(rates, float | int) else rates


def _stride(weights: Params, steps: int) -> int:
    size = sum(w.numel() * w.element_size() for w in weights.values())
    return 1 if steps * size <= KEPT_BYTES else math.isqrt(max(steps - 1, 0)) + 1


def _step(task: Task, weights: Params, batches: Batches, step: int, learning_rate: float) -> Params:
    """One plain SGD step, the same code at client and server."""
    gradient = _gradient(task, weights, batches, step)
    return {k: torch.sub(w, gradient[k], alpha=learning_rate) for k, w in weights.items()}


def _gradient(task: Task, weights: Params, batches: Batches, step: int) -> Params:
    """The gradient of the mean loss over one step's batch."""
    x, y = batches.at(step)
    by_hand = written_out(task, weights, x, 1)
    if by_hand is not None:
        return first_order(by_hand, task.loss, x, y)[0]
    leaves = tracked(weights)
    total = {k: torch.zeros_like(w) for k, w in weights.items()}
    for part, labels in _chunks(task, x, y):
        loss = _share(task, leaves, part, labels, len(x))
        # An unused weight (a bias before an instance norm) has gradient zero.
        gradient = torch.autograd.grad(
            loss, list(leaves.values()), allow_unused=True, materialize_grads=True
        )
        for sum_so_far, part in zip(total.values(), gradient, strict=True):
            sum_so_far.add_(part)
    return total


def _second_order(
    task: Task, weights: Params, x: Tensor, y: Tensor, v: Params
) -> tuple[Tensor, Tensor, Params, float]:
    """Gradients of <grad_w L, v> by inputs, labels and weights, and its value; L is a mean, so the
    chunks are summed."""
    by_hand = written_out(task, weights, x, 2)
    if by_hand is not None:
        return second_order(by_hand, task.loss, x, y, v)
    by_x, by_y = torch.zeros_like(x), torch.zeros_like(y)
    by_w = {k: torch.zeros_like(w) for k, w in weights.items()}
    values: list[Tensor] = []
    rows = 0
    for part, labels in _chunks(task, x, y):
        leaves, chunk = tracked(weights), slice(rows, rows + len(part))
        part = part.detach().requires_grad_(True)
        inputs = [part, *leaves.values()]
        if labels.is_floating_point():
            labels = labels.detach().requires_grad_(True)
            inputs.append(labels)
        loss = _share(task, leaves, part, labels, len(x))
        gradient = torch.autograd.grad(
            loss, list(leaves.values()), create_graph=True, allow_unused=True
        )
        pairs = zip(gradient, v.values(), strict=True)
        along = torch.stack([(g * part).sum() for g, part in pairs if g is not None]).sum()
        found = torch.autograd.grad(along, inputs, allow_unused=True, materialize_grads=True)
        by_x[chunk] = found[0]
        for sum_so_far, chunk_w in zip(by_w.values(), found[1:], strict=False):
            sum_so_far.add_(chunk_w)
        if labels.is_floating_point():
            by_y[chunk] = found[-1]
        values.append(along.detach())
        rows += len(part)
    return by_x, by_y, by_w, sum(torch.stack(values).tolist())


def _share(task: Task, weights: Params, x: Tensor, y: Tensor, of: int) -> Tensor:
    """This chunk's part of the mean loss over a batch of ``of`` inputs."""
    return task.loss(task.model.apply_continuous(weights, x), y).mean() * (len(x) / of)


def _chunks(task: Task, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Parts that fit into the processor's cache, with small graphs."""
    size = task.chunk
    return zip(x.split(size), y.split(size), strict=True)
