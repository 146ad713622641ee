"""Distribution matching through the private door: images that match what was released.

``features``: a record's vector is its outputs at the matched layers, [h; z] for FedDM. The release
is one noisy sum per class, and the images are optimised towards its mean for any number of steps,
which read no record. The images' features are clipped to the same norm as the records' vectors:
otherwise a small clip would demand features that no image has. With a clip that no vector exceeds
it is plain distribution matching.

``gradient``: a record's vector is the pixel gradient of its distance to its class's images
(FedDM eq. 19 to 21: their mean is the gradient of the class's loss). Each release serves one step,
and each record costs one backward pass through the images.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedstill.private import ClassSums, Leak, Private
from fedstill.records import Records
from fedstill.steps.ball import sample_ball
from fedstill.steps.classes import noise_for
from fedstill.steps.distil import PixelSteps, Plateau, pixel_optimiser, seen_images
from fedstill.steps.matching import Matching, Outputs, classes_at_once, outputs_of, same
from fedstill.types import ClientContext, Params, Task

Target = Literal["features", "gradient"]

_LEAST = 1.0  # the least divisor of a class sum: a noisy count may be zero or negative


@dataclass(frozen=True)
class Release:
    """How a private client matches. ``steps``: pixel steps per release of features."""

    target: Target
    steps: int


def matching_leaks(
    initial: str, augment: str, target: Target, patience: int = 0
) -> tuple[Leak, ...]:
    """The settings of a matching method that would leak records, or have no private form."""
    leaks = list(initial_leaks(initial))
    if augment != "none":
        leaks.append(
            Leak(
                "augment",
                augment,
                "one augmentation for both sides is not implemented for released targets",
                "set method.augment = 'none'",
            )
        )
    if patience:
        why = (
            "early stopping would use a loss on the records, which is not sanitised"
            if target == "gradient"
            else "the number of accesses to the records would depend on their results"
        )
        leaks.append(Leak("patience", patience, why, "set method.patience = 0"))
    return tuple(leaks)


def initial_leaks(initial: str) -> tuple[Leak, ...]:
    """The leak of a synthetic set that is initialised with records."""
    if initial == "noise":
        return ()
    return (
        Leak(
            "initial",
            initial,
            "images that start from records carry them to the server, whatever noise is added",
            "start from noise: method.initial = 'noise'",
        ),
    )


def first_noise(ctx: ClientContext, images_per_class: int, shrink: int = 1) -> Tensor:
    """The initial images of a private client: noise for each class sent, in slot form."""
    generator = ctx.rng.at("images").torch()
    return noise_for(ctx, len(_door(ctx).classes), images_per_class, generator, shrink)


def match_released(
    ctx: ClientContext,
    centre: Params,
    radius: float,
    start: Tensor,
    plan: Sequence[Matching],
    pixels: PixelSteps,
    release: Release,
) -> tuple[Tensor, float]:
    """The images after ``len(plan)`` accesses, and the smoothed loss against what was released.

    Access t: weights drawn from the ball around ``centre``, one release of class sums, then pixel
    steps on ``plan[t]``'s loss.
    """
    door = _door(ctx)
    images = start.detach().clone()
    optimiser = pixel_optimiser(images, pixels)
    seen = seen_images(ctx.task, pixels)
    stream = ctx.rng.at("weights").torch()
    counts = _RunningMean()
    watch = Plateau(pixels.patience, pixels.tolerance)
    for number, matching in enumerate(plan):
        weights = sample_ball(centre, radius, stream)
        if release.target == "gradient":
            sums = door.noisy_class_sums(
                _PixelGradients(ctx.task, weights, images, door, matching, seen)
            )
            images.grad = _means(sums, counts.add(sums.counts))["pixels"]
            optimiser.step()
        else:
            sums = door.noisy_class_sums(_Features(ctx.task, weights, matching))
            means = _means(sums, counts.add(sums.counts))
            target = tuple(means[name] for name in sorted(means))
            for _ in range(release.steps):
                images.grad, loss = clipped_pixel_gradient(
                    ctx.task, weights, images, target, matching, door.class_clip, seen
                )
                optimiser.step()
            if watch.settled(loss):  # the loss against a release: post-processing
                break
        ctx.progress(number + 1, len(plan))
    images.grad = None
    return images, watch.smooth


def clipped_pixel_gradient(
    task: Task,
    params: Params,
    images: Tensor,
    means: Outputs,
    matching: Matching,
    clip: float,
    seen: Callable[[Tensor], Tensor] = same,
) -> tuple[Tensor, Tensor]:
    """As ``matching.pixel_gradient``, with the images' features clipped to norm ``clip``."""
    forward = task.model.pixel_features_by(params, matching.layers)
    classes = classes_at_once(task, images.shape[1])
    gradient = torch.empty_like(images)
    total = torch.zeros((), device=images.device)
    targets = zip(*(m.split(classes) for m in means), strict=True)
    for part, into, target in zip(
        images.split(classes), gradient.split(classes), targets, strict=True
    ):
        x = part.detach().requires_grad_(True)
        rows = tuple(out.flatten(1) for out in forward(seen(x.flatten(0, 1))))
        outputs = _clipped(rows, clip)
        loss = torch.zeros((), device=images.device)
        for out, mean in zip(outputs, target, strict=True):
            difference = out.unflatten(0, x.shape[:2]).mean(1) - mean
            loss = loss + matching.distance(difference).sum()
        into.copy_(torch.autograd.grad(loss, x)[0])
        total += loss.detach()
    return gradient, total


@dataclass(frozen=True)
class _Features:
    """Maps records to their outputs at the matched layers."""

    task: Task
    params: Params
    matching: Matching

    def __call__(self, records: Records) -> Params:
        with torch.no_grad():
            outputs = outputs_of(self.task.model, self.matching)(self.params, records.all()[0])
        return {f"{number:03d}": out for number, out in enumerate(outputs)}


@dataclass(frozen=True)
class _PixelGradients:
    """Maps records to the pixel gradient of their distance to the images of their class."""

    task: Task
    params: Params
    images: Tensor
    door: Private
    matching: Matching
    seen: Callable[[Tensor], Tensor] = same

    @property
    def floats(self) -> int:
        return self.images[0].numel()

    def __call__(self, records: Records) -> Params:
        x, labels = records.all()
        forward = outputs_of(self.task.model, self.matching)
        with torch.no_grad():
            wanted = forward(self.params, x)
        pixels = torch.zeros(len(x), *self.images.shape[1:], device=x.device)
        for slot, label in enumerate(self.door.classes.tolist()):
            rows = (labels == label).nonzero().flatten()
            if len(rows):
                synthetic = self.images[slot].detach().requires_grad_(True)
                means = [out.mean(0) for out in forward(self.params, self.seen(synthetic))]
                gradients = [
                    self.matching.distance_gradient(mean.detach() - goal[rows])
                    for mean, goal in zip(means, wanted, strict=True)
                ]
                pixels[rows] = torch.autograd.grad(
                    means, synthetic, gradients, is_grads_batched=True
                )[0]
        return {"pixels": pixels}


class _RunningMean:
    """The mean of all noisy counts so far: each estimates the same number."""

    def __init__(self) -> None:
        self._sum: Tensor | float = 0.0
        self._seen = 0

    def add(self, counts: Tensor) -> Tensor:
        self._sum, self._seen = self._sum + counts, self._seen + 1
        mean: Tensor = self._sum / self._seen
        return mean


def _means(release: ClassSums, counts: Tensor) -> Params:
    least = counts.clamp(min=_LEAST)
    return {k: v / least.view(-1, *[1] * (v.dim() - 1)) for k, v in release.sums.items()}


def _clipped(outputs: Outputs, clip: float) -> Outputs:
    """Each image's outputs, together clipped to norm ``clip``, as the door does."""
    norms = torch.stack([out.square().sum(1) for out in outputs]).sum(0).clamp(min=clip**2).sqrt()
    return tuple(out * (clip / norms)[:, None] for out in outputs)


def _door(ctx: ClientContext) -> Private:
    assert ctx.private is not None
    return ctx.private
