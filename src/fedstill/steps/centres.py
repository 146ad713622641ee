"""Records that cover their class: those nearest to the centres of k-means, in a network's features.

Random records repeat what is common and miss what is rare; one record per cluster does neither.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fedstill.steps.classes import START_AGAIN, ByClass, real_images
from fedstill.types import ClientContext, Params, Task

_CLUSTERED = 500  # records of a class that are clustered, at most: the cost grows with them
_ROUNDS = 15  # of Lloyd's algorithm


def central_images(
    ctx: ClientContext,
    by_class: ByClass,
    images_per_class: int,
    generator: torch.Generator,
    params: Params,
    seen: Callable[[Tensor], Tensor],
    *,
    repeats: str = START_AGAIN,
) -> Tensor:
    """In slot form: the records whose features are nearest to ``images_per_class`` centres.

    ``seen``: a record as the network will see it. Of classes with no more records than that, all
    are taken, as ``real_images`` does.
    """
    images = real_images(ctx, by_class, images_per_class, generator, repeats=repeats)
    labels = ctx.records.labels
    for slot, label in enumerate(by_class.held.tolist()):
        positions = (labels == label).nonzero()[:, 0]
        if len(positions) <= images_per_class:
            continue
        some = positions[torch.randperm(len(positions), generator=generator)[:_CLUSTERED]]
        if len(some) < images_per_class:  # more images than are clustered: random ones
            continue
        records, _ = ctx.records.take(some)
        points = features_of(ctx.task, params, seen(records))
        centres = k_means(points, images_per_class, generator)
        images[slot] = records[torch.cdist(points, centres).argmin(0)]
    return images


@torch.no_grad()
def features_of(task: Task, params: Params, images: Tensor) -> Tensor:
    """What feeds the last layer, one row per image."""
    parts = images.split(task.chunk)
    return torch.cat([task.model.inference(params, x)[-2].flatten(1) for x in parts])


def k_means(points: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """This many centres, by Lloyd's algorithm from random points. A centre that no point is nearest
    to stays where it is."""
    first = torch.randperm(len(points), generator=generator)[:number]
    centres = points[first.to(points.device)].clone()
    for _ in range(_ROUNDS):
        nearest = torch.cdist(points, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        counts = torch.bincount(nearest, minlength=number)[:, None]
        centres = torch.where(counts > 0, sums / counts.clamp(min=1), centres)
    return centres
