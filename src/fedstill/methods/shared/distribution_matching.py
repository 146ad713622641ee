"""The client's side of FedDM and FedDualMatch: images whose features match the records'."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from msgspec import Meta
from torch import Tensor

from fedstill.errors import RequestError
from fedstill.methods.shared.pixels import PixelSettings
from fedstill.methods.shared.small_images import SmallImages
from fedstill.private import Leak
from fedstill.steps.centres import central_images
from fedstill.steps.classes import ByClass, check_images, first_images
from fedstill.steps.distil import PixelSteps, match_distribution
from fedstill.steps.matching import Matching
from fedstill.steps.released import Release, Target, first_noise, match_released, matching_leaks
from fedstill.steps.resize import shrunk
from fedstill.types import ClientContext, Params, Task

# Where images start: random records, records that cover their class (k-means), or noise.
MatchingInitial = Literal["real", "centres", "noise"]


@dataclass(frozen=True)
class Matched:
    """A client's result: the classes it holds, images [held, images per class, ...], the loss."""

    held: Tensor
    images: Tensor
    loss: float


@dataclass(frozen=True, kw_only=True)
class DistributionMatching(SmallImages, PixelSettings):
    """Distribution matching on records, or on noisy releases where privacy is on."""

    iterations: Annotated[int, Meta(ge=0)]
    initial: MatchingInitial
    compile: Literal["off", "on"] = "off"
    target: Target = "features"  # what a private run releases
    # Match the pixels as wire.up rounds them, so that what is matched is what arrives.
    match_as_sent: bool = False
    release_steps: Annotated[int, Meta(ge=1)] = 10  # pixel steps per release of features
    # The same without privacy: per draw of weights and real batches (the papers: 1).
    steps_per_draw: Annotated[int, Meta(ge=1)] = 1

    def match(
        self,
        ctx: ClientContext,
        centre: Params,
        radius: float,
        images_per_class: int,
        plan: Sequence[Matching],
        last: Tensor | None = None,
    ) -> Matched:
        """Images matched around ``centre``, initialised from ``last`` or as ``initial`` says.

        They are ``shrink`` times smaller than the network sees them.
        """
        if ctx.private is not None:
            start = first_noise(ctx, images_per_class, self.shrink) if last is None else last
            release = Release(self.target, self.release_steps)
            found = match_released(ctx, centre, radius, start, plan, self.pixels, release)
            return Matched(ctx.private.classes, *found)
        check_images(ctx)
        by_class = ByClass(ctx.records)
        if last is None:
            last = self.first(ctx, by_class, images_per_class, centre)
        found = match_distribution(ctx, by_class, centre, radius, last, plan, self.pixels)
        return Matched(by_class.held, *found)

    def first(
        self, ctx: ClientContext, by_class: ByClass, images_per_class: int, params: Params
    ) -> Tensor:
        """The images before the first step, in slot form, ``shrink`` times smaller."""
        if self.initial != "centres":
            return first_images(ctx, by_class, images_per_class, self.initial, self.shrink)
        generator = ctx.rng.at("images").torch()
        images = central_images(ctx, by_class, images_per_class, generator, params, self.seen)
        return shrunk(images, self.shrink)

    @property
    def pixels(self) -> PixelSteps:
        return replace(
            super().pixels,
            as_sent=self.match_as_sent,
            shrink=self.shrink,
            per_draw=self.steps_per_draw,
        )

    def refuse_unless_sent_as_levels(self, task: Task) -> None:
        """Refuse ``match_as_sent`` where the codec has no fixed levels, or the data no scaling."""
        if self.match_as_sent and (task.sent_bits is None or not task.scaling.mean):
            raise RequestError(
                "method.match_as_sent: pixels have fixed levels only in a codec of few bits, and "
                "of images; set wire.up to bits8+zstd .. bits1+context, or leave it out"
            )

    @property
    def matching_leaks(self) -> tuple[Leak, ...]:
        """The settings that would leak records in a private run, or have no private form."""
        return matching_leaks(self.initial, self.augment, self.target, self.pixels.patience)
