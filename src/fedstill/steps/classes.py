"""A client's records by class: batches for matching, and initial synthetic images.

Only classes that the client holds appear. They are numbered by *slots*, 0 .. held - 1, in the
order of their labels; images in slot form have the shape [held, images per class, ...].
"""

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fedstill.errors import RunError
from fedstill.records import Records
from fedstill.steps.resize import shrunk, small_shape
from fedstill.types import ClientContext

Initial = Literal["real", "noise"]

# What it means for the images of a class that some of its few records are taken repeatedly.
START_AGAIN = "their synthetic images start from repeated records"
SENT_AGAIN = "some of their records are sent repeatedly"


@dataclass(frozen=True)
class ByClass:
    """Positions of a client's records, grouped by class."""

    records: Records

    @cached_property
    def _labels(self) -> Tensor:
        return self.records.labels

    @cached_property
    def held(self) -> Tensor:
        """Labels of the classes held, ascending."""
        held: Tensor = self._labels.unique()
        return held

    @cached_property
    def _slots(self) -> Tensor:
        return torch.searchsorted(self.held, self._labels)

    @cached_property
    def counts(self) -> Tensor:
        """Number of records per slot."""
        return torch.bincount(self._slots, minlength=len(self.held))

    @cached_property
    def _ranks(self) -> Tensor:
        """0, 1, 2, ... within each class, for positions sorted by class."""
        starts = self.counts.cumsum(0) - self.counts
        return torch.arange(len(self.records)) - starts.repeat_interleave(self.counts)

    def draw(self, most: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """At most ``most`` random records per class: their positions and slots, grouped by class.

        One shuffle of all records and one stable sort, for any number of classes.
        """
        if int(self.counts.max()) <= most:  # all of them: nothing to draw
            order = self._slots.argsort(stable=True)
            return order, self._slots[order]
        shuffled = torch.randperm(len(self.records), generator=generator)
        order = shuffled[self._slots[shuffled].argsort(stable=True)]
        chosen = order[self._ranks < most]
        return chosen, self._slots[chosen]


def labels_of(by_class: ByClass, images_per_class: int) -> Tensor:
    """Fixed labels of the synthetic images, in the order of the slots."""
    return labels_for(by_class.held, images_per_class)


def labels_for(held: Tensor, images_per_class: int) -> Tensor:
    """The same for these classes."""
    return held.repeat_interleave(images_per_class)


def real_images(
    ctx: ClientContext,
    by_class: ByClass,
    images_per_class: int,
    generator: torch.Generator,
    chances: Tensor | None = None,
    *,
    repeats: str = START_AGAIN,
) -> Tensor:
    """Random records of every class, in slot form.

    ``chances``: one number per record; each draw takes one of the records that are left, in
    proportion to them (all equal where there are none). A class with too few records repeats some;
    ``repeats`` says in a warning what that means.
    """
    # Exponential times, divided by the rates, arrive in the order of such draws.
    arrivals = None
    if chances is not None:
        times = torch.empty(len(ctx.records), dtype=torch.float64).exponential_(generator=generator)
        arrivals = times / chances.double().cpu().clamp(min=torch.finfo(torch.float32).tiny)
    positions, _ = by_class.draw(len(ctx.records), generator)
    chosen: list[Tensor] = []
    for held in positions.split(by_class.counts.tolist()):
        if arrivals is None:
            order = held[torch.randperm(len(held), generator=generator)]
        else:
            order = held[arrivals[held].argsort()]
        if len(held) < images_per_class:
            warnings.warn(
                f"some classes have fewer records than images_per_class: {repeats}",
                stacklevel=2,
            )
            again = torch.randint(len(held), (images_per_class - len(held),), generator=generator)
            order = torch.cat([order, held[again]])
        chosen.append(order[:images_per_class])
    images, _ = ctx.records.take(torch.cat(chosen))
    return images.view(len(by_class.held), images_per_class, *images.shape[1:])


def noise_for(
    ctx: ClientContext,
    slots: int,
    images_per_class: int,
    generator: torch.Generator,
    shrink: int = 1,
) -> Tensor:
    """Standard normal noise in slot form, for ``slots`` classes."""
    shape = (slots, images_per_class, *small_shape(ctx.task.shape, shrink))
    return torch.randn(shape, generator=generator).to(ctx.task.device)


def first_images(
    ctx: ClientContext, by_class: ByClass, images_per_class: int, initial: Initial, shrink: int = 1
) -> Tensor:
    """The initial images of a round, in slot form: records or noise, ``shrink`` times smaller."""
    generator = ctx.rng.at("images").torch()
    if initial == "noise":
        return noise_for(ctx, len(by_class.held), images_per_class, generator, shrink)
    return shrunk(real_images(ctx, by_class, images_per_class, generator), shrink)


def check_images(ctx: ClientContext) -> None:
    """Refuse records that are not images, or hold NaN or infinity."""
    inputs = ctx.records.split.inputs
    if not ctx.task.scaling.mean and not inputs.is_floating_point():
        raise RunError(f"client {ctx.client}: its records are not images, which this method needs")
    if not inputs.is_floating_point():
        return
    for rows in ctx.records.index.split(4096):
        bad = ~torch.isfinite(inputs[rows]).flatten(1).all(1)
        if bool(bad.any()):
            record = int(rows[bad.nonzero()[0, 0]])
            raise RunError(f"client {ctx.client}: record {record} holds NaN or infinity")
