"""The chunks of gradient matching as programs that ``torch.compile`` fuses.

Autograd cannot differentiate twice through a compiled function, so both passes are written with
``torch.func``: the pixel gradient of <grad_w loss, v> is that of the loss's derivative along v.
All chunks have one shape (empty rows count nothing), so that nothing is compiled twice.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, jvp

from fedstill.models.model import Model
from fedstill.steps.matching import padded
from fedstill.types import Params, Task

Loss = Callable[[Tensor, Tensor], Tensor]


def fused_weight_gradient(task: Task, params: Params, x: Tensor, y: Tensor) -> list[Tensor]:
    """Gradient of the mean loss over one batch."""
    program = _weight_program(task.model, task.loss)
    total = [torch.zeros_like(v) for v in params.values()]
    for part, labels, shares in _chunks(task, x, y):
        for sum_so_far, slope in zip(
            total, program(params, part, labels, shares).values(), strict=True
        ):
            sum_so_far.add_(slope)
    return total


def fused_pixels(
    task: Task,
    params: Params,
    slopes: Sequence[Tensor],
    images: Tensor,
    labels: Tensor,
    augment: Callable[[Tensor], Tensor],
) -> Tensor:
    """Pixel gradient of the mean loss's derivative along ``slopes``."""
    program = _pixel_program(task.model, task.loss)
    direction = dict(zip(params, slopes, strict=True))
    leaf = images.detach().requires_grad_(True)
    seen = augment(leaf)
    found = [
        program(part, params, direction, of, shares)
        for part, of, shares in _chunks(task, seen.detach(), labels)
    ]
    return torch.autograd.grad(seen, leaf, torch.cat(found)[: len(images)])[0]


def _chunks(task: Task, x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Images, labels and each image's share in the mean."""
    size = task.model.chunk
    shares = x.new_full((len(x),), 1 / len(x))
    parts = zip(x.split(size), y.split(size), shares.split(size), strict=True)
    return [(padded(a, size), padded(b, size), padded(c, size)) for a, b, c in parts]


def _loss_of(model: Model, loss: Loss) -> Callable[[Params, Tensor, Tensor, Tensor], Tensor]:
    def total(params: Params, x: Tensor, y: Tensor, shares: Tensor) -> Tensor:
        return (loss(model.apply(params, x), y) * shares).sum()

    return total


@lru_cache(maxsize=8)
def _weight_program(model: Model, loss: Loss) -> Any:
    return torch.compile(grad(_loss_of(model, loss)), fullgraph=True, dynamic=False)


@lru_cache(maxsize=8)
def _pixel_program(model: Model, loss: Loss) -> Any:
    total = _loss_of(model, loss)

    def along(x: Tensor, params: Params, v: Params, y: Tensor, shares: Tensor) -> Tensor:
        tangent: Tensor = jvp(lambda w: total(w, x, y, shares), (params,), (v,))[1]
        return tangent

    return torch.compile(grad(along), fullgraph=True, dynamic=False)
