"""Distribution matching: per-class means of a network's outputs, real against synthetic.

The loss is a sum over the classes a client holds and over the last ``layers`` outputs of the
network (FedDM eq. 9: the features before the last layer, and the logits) of the distance between
the mean output of the real and of the synthetic images.

There is no loop over classes. All real images stream through the network in chunks that stay in
the processor's cache, without gradients, into sums per class; the synthetic images follow a few
whole classes at a time, and only their pixels get a gradient. A class's mean is then known within
its chunk, so one pass is enough, and no activation is kept for another chunk.
"""

import os
import shutil
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from fedstill.models.model import Forward, Model
from fedstill.types import Params, Task

Outputs = tuple[Tensor, ...]  # one tensor per matched layer


@dataclass(frozen=True)
class Matching:
    """What is matched, and how.

    ``squared``: squared Euclidean distances, or plain ones (FedDualMatch as printed).
    ``compiled``: fuse the chunks' computation with ``torch.compile``; the first call takes long.
    """

    layers: int = 2
    squared: bool = True
    compiled: bool = False

    def distance(self, difference: Tensor) -> Tensor:
        """The norm of each row, squared or not."""
        return difference.square().sum(1) if self.squared else euclidean(difference)

    def distance_gradient(self, difference: Tensor) -> Tensor:
        """The gradient of ``distance`` with respect to each row."""
        if self.squared:
            return 2 * difference
        length = euclidean(difference)[:, None]
        return torch.where(length > 0, difference / length.clamp(min=1e-30), 0.0)


def same(x: Tensor) -> Tensor:
    """No augmentation."""
    return x


def class_means(
    task: Task,
    params: Params,
    chunks: Iterable[tuple[Tensor, Tensor]],
    counts: Tensor,
    matching: Matching,
) -> Outputs:
    """Mean outputs [classes, size] of real images that come as chunks of (images, slots)."""
    compiled, outputs_by = _program(outputs_of, task, matching)
    forward = task.model.inference_by(params, matching.layers)
    sums: list[Tensor] = []
    with torch.no_grad():
        for x, slots in chunks:
            if compiled:
                full = padded(x, compiled_rows(len(x), task.chunk))
                outputs = [out[: len(x)] for out in outputs_by(params, full)]
            else:
                outputs = [out.flatten(1) for out in forward(x)]
            sums = sums or [out.new_zeros(len(counts), out.shape[1]) for out in outputs]
            for total, out in zip(sums, outputs, strict=True):
                total.index_add_(0, slots, out)
    return tuple(total / counts[:, None].to(total) for total in sums)


def pixel_gradient(
    task: Task,
    params: Params,
    images: Tensor,
    means: Outputs,
    matching: Matching,
    augment: Callable[[Tensor], Tensor] = same,
) -> tuple[Tensor, Tensor]:
    """Gradient with respect to ``images`` [classes, images per class, ...], and the loss."""
    compiled, distances_by = _program(_distances_of, task, matching)
    forward = task.model.pixel_features_by(params, matching.layers)
    classes = classes_at_once(task, images.shape[1])
    rows = compiled_rows(len(images), classes)
    gradient = torch.empty_like(images)
    total = torch.zeros((), device=images.device, dtype=images.dtype)
    targets = zip(*(m.split(classes) for m in means), strict=True)
    for part, into, target in zip(
        images.split(classes), gradient.split(classes), targets, strict=True
    ):
        x = part.detach().requires_grad_(True)
        seen = augment(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        if compiled:
            full = tuple(padded(t, rows) for t in target)
            loss = distances_by(params, padded(seen, rows), full)[: len(x)].sum()
        else:
            loss = distances(forward, seen, target, matching).sum()
        into.copy_(torch.autograd.grad(loss, x)[0])
        total += loss.detach()
    return gradient, total


def classes_at_once(task: Task, images_per_class: int) -> int:
    """Whole classes per synthetic chunk, which may exceed the model's chunk by a quarter."""
    return max(1, round(1.25 * task.chunk / images_per_class))


def euclidean(difference: Tensor) -> Tensor:
    """Norm of each row; the gradient at zero is zero, not NaN."""
    square = difference.square().sum(1)
    apart = square > 0
    return torch.where(apart, square, 1.0).sqrt() * apart


def outputs_of(model: Model, matching: Matching) -> Callable[[Params, Tensor], Outputs]:
    """The function from images to their outputs at the matched layers, one row per image."""

    def outputs(params: Params, x: Tensor) -> Outputs:
        return tuple(out.flatten(1) for out in model.features(params, x)[-matching.layers :])

    return outputs


def distances(forward: Forward, images: Tensor, means: Outputs, matching: Matching) -> Tensor:
    """Distance per class, summed over the layers."""
    total = images.new_zeros(len(images))
    for out, mean in zip(forward(images.flatten(0, 1)), means, strict=True):
        difference = out.flatten(1).unflatten(0, images.shape[:2]).mean(1) - mean
        total = total + matching.distance(difference)
    return total


def _distances_of(model: Model, matching: Matching) -> Callable[[Params, Tensor, Outputs], Tensor]:
    forward = outputs_of(model, matching)

    def by(params: Params, images: Tensor, means: Outputs) -> Tensor:
        return distances(partial(forward, params), images, means, matching)

    return by


def compiled_rows(rows: int, most: int) -> int:
    """How many rows a compiled function gets for these, of which it may get ``most`` at once.

    Each number of rows is compiled anew, which takes long: there are few, powers of two from 16.
    """
    return min(most, max(16, 1 << (rows - 1).bit_length()))


def padded(x: Tensor, rows: int) -> Tensor:
    """``x`` padded with zeros to this many rows."""
    return x if len(x) == rows else torch.cat([x, x.new_zeros(rows - len(x), *x.shape[1:])])


def _program(make: Callable[..., Any], task: Task, matching: Matching) -> tuple[bool, Any]:
    """Whether the function is compiled, and the function itself. On a processor, networks with a
    kernel of their own gain nothing from the compiler."""
    has_kernel = task.model.fast_inference and task.device.type == "cpu"
    if matching.compiled and not has_kernel and compiler_found():
        return True, _compiled(make, task.model, matching)
    return False, make(task.model, matching)


@lru_cache(maxsize=16)
def _compiled(make: Callable[..., Any], model: Model, matching: Matching) -> Any:
    return torch.compile(make(model, matching), fullgraph=True, dynamic=False)


@lru_cache(maxsize=1)
def compiler_found() -> bool:
    """Whether ``torch.compile`` can work here; warns once if it cannot."""
    found = any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++"))
    if not found:
        warnings.warn("no C++ compiler: compile = 'on' falls back to plain PyTorch", stacklevel=2)
    return found
