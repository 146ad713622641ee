"""Gradients by derivatives that a network has written out (``Model.written_out``), in chunks.

The same results up to rounding as autograd's; the loss, a function of the logits, is still left to
autograd, so it may be any.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstill.models.kernels.derivatives import Back, Derivatives, Prepared, Sums, Trace
from fedstill.types import Params, Task

Loss = Callable[[Tensor, Tensor], Tensor]


def written_out(task: Task, params: Params, x: Tensor, order: int) -> Derivatives | None:
    """The network's own derivatives at these weights, if it has them and they suit the inputs."""
    form = task.model.written_out(len(x), order)
    if form is None:
        return None
    weight = next(iter(params.values()))
    same_kind = (x.dtype, x.device.type) == (weight.dtype, "cpu") and weight.device == x.device
    return Derivatives(params, form) if same_kind else None


@dataclass(frozen=True)
class Head:
    """A loss as a function of the logits and of labels that are distributions."""

    logits: Tensor
    labels: Tensor
    value: Tensor
    by_logits: Tensor

    @classmethod
    def at(
        cls, loss: Loss, logits: Tensor, y: Tensor, of: int, share: Tensor | None, *, twice: bool
    ) -> "Head":
        """The sum of the losses, each with its ``share``, divided by ``of``."""
        with torch.enable_grad():
            logits = logits.detach().requires_grad_(True)
            soft = twice and y.is_floating_point()
            labels = y.detach().requires_grad_(True) if soft else y
            losses = loss(logits, labels)
            value = (losses if share is None else losses * share).sum() / of
            by_logits = torch.autograd.grad(value, logits, create_graph=twice)[0]
        return cls(logits, labels, value.detach(), by_logits)

    def along(self, dot: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """The derivative of ``by_logits`` and of the gradient by soft labels along a direction of
        the logits, and that of the value."""
        inputs = [self.logits, *([self.labels] if self.labels.requires_grad else [])]
        found = torch.autograd.grad(
            self.by_logits, inputs, dot, allow_unused=True, materialize_grads=True
        )
        value = (self.by_logits.detach() * dot).sum()
        return found[0], found[1] if len(found) > 1 else None, value


def first_order(
    by_hand: Derivatives, loss: Loss, x: Tensor, y: Tensor, weights: Tensor | None = None
) -> tuple[Params, Tensor]:
    """Gradient and value of the mean loss; ``weights`` multiply the records' losses."""
    sums, size = by_hand.sums(), by_hand.chunk
    total = torch.zeros((), device=x.device)
    shares = [None] * len(x.split(size)) if weights is None else weights.split(size)
    for part, labels, share in zip(x.split(size), y.split(size), shares, strict=True):
        trace = by_hand.forward(part.detach())
        head = Head.at(loss, trace.logits, labels, len(x), share, twice=False)
        by_hand.backward(trace, head.by_logits, sums)
        total += head.value
    return by_hand.result(sums), total


@dataclass(frozen=True)
class _Passed:
    """A chunk after its first pass."""

    images: Tensor
    seen: Tensor  # after the augmentation
    trace: Trace
    head: Head
    back: Back


def matched_pixels(
    by_hand: Derivatives,
    loss: Loss,
    images: Tensor,
    labels: Tensor,
    augment: Callable[[Tensor], Tensor],
    distance: Callable[[Sequence[Tensor]], tuple[Tensor, Sequence[Tensor]]],
    kept_images: int,
) -> tuple[Tensor, Tensor]:
    """Pixel gradient of a distance that is a function of the images' weight gradient.

    ``distance`` gives its value and its gradient v at a weight gradient. The passes of at most
    ``kept_images`` images are kept between the two derivatives; the others are computed twice.
    """

    def first_pass(x: Tensor, y: Tensor, sums: Sums | None, *, twice: bool) -> _Passed:
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            seen = augment(x)
        trace = by_hand.forward(seen.detach())
        head = Head.at(loss, trace.logits, y, len(images), None, twice=twice)
        back = by_hand.backward(trace, head.by_logits.detach(), sums)
        return _Passed(x, seen, trace, head, back)

    sums, size = by_hand.sums(), by_hand.chunk
    chunks = list(zip(images.split(size), labels.split(size), strict=True))
    kept: deque[_Passed] = deque()
    for number, (x, y) in enumerate(chunks):
        keep = number < math.ceil(kept_images / size)
        passed = first_pass(x, y, sums, twice=keep)
        if keep:
            kept.append(passed)
    value, vector = distance(list(by_hand.result(sums).values()))
    direction = by_hand.direction(dict(zip(by_hand.params, vector, strict=True)))
    pixels = []
    for x, y in chunks:
        passed = kept.popleft() if kept else first_pass(x, y, None, twice=True)
        found = _along(by_hand, passed.trace, passed.back, passed.head, direction, None)[0]
        if passed.seen is not passed.images:
            found = torch.autograd.grad(passed.seen, passed.images, found)[0]
        pixels.append(found)
    return torch.cat(pixels), value


def second_order(
    by_hand: Derivatives, loss: Loss, x: Tensor, y: Tensor, v: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor, Params, float]:
    """Gradients of <grad_w L, v> by inputs, labels and weights, and its value; L is the mean loss.

    The gradient by labels is zero where these are class numbers.
    """
    direction, sums, size = by_hand.direction(v), by_hand.sums(), by_hand.chunk
    by_x, by_y, values = [], [], []
    for part, labels in zip(x.split(size), y.split(size), strict=True):
        trace = by_hand.forward(part.detach())
        head = Head.at(loss, trace.logits, labels, len(x), None, twice=True)
        back = by_hand.backward(trace, head.by_logits.detach(), None)
        by_part, by_labels, value = _along(by_hand, trace, back, head, direction, sums)
        by_x.append(by_part)
        by_y.append(torch.zeros_like(labels) if by_labels is None else by_labels)
        values.append(value)
    total = sum(torch.stack(values).tolist())
    return torch.cat(by_x), torch.cat(by_y), by_hand.result(sums), total


def _along(
    by_hand: Derivatives,
    trace: Trace,
    back: Back,
    head: Head,
    direction: Prepared,
    sums: Sums | None,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The derivatives along a direction: by the pixels, by soft labels, and of the loss."""
    dot = by_hand.dot_forward(trace, direction)
    by_logits, by_labels, value = head.along(dot.logits)
    pixels = by_hand.dot_backward(trace, back, dot, direction, by_logits, sums)
    return pixels, by_labels, value
