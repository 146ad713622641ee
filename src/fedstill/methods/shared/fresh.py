"""Settings of methods whose product is a set: its worth is the accuracy of new networks on it."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from fedstill.records import Records, SyntheticSet
from fedstill.steps.augment import Augment
from fedstill.steps.from_scratch import evaluate_set
from fedstill.steps.training import Training
from fedstill.types import Evaluation, ServerContext


@dataclass(frozen=True, kw_only=True)
class FreshNetworks:
    """When and how newly initialised networks are trained on the set alone."""

    fresh_every: Annotated[int, Meta(ge=1)] = 5  # rounds
    fresh_networks: Annotated[int, Meta(ge=1)] = 5
    fresh_epochs: Annotated[int, Meta(ge=1)] = 100
    fresh_learning_rate: Annotated[float, Meta(gt=0)] = 0.02
    fresh_augment: Augment = "none"  # DC augments digits here, though not in matching
    flip: bool = False  # whether augmentation may mirror images: never for digits

    @property
    def training(self) -> Training:
        """The training of new networks on the set."""
        return Training(
            self.fresh_learning_rate,
            momentum=0.9,
            epochs=self.fresh_epochs,
            augment=self.fresh_augment,
            flip=self.flip,
        )

    def worth(self, ctx: ServerContext, synthetic: SyntheticSet, test: Records) -> Evaluation:
        """Mean test accuracy of new networks; the spread is in ``details``."""
        rng, number = ctx.rng.at("evaluation"), self.fresh_networks
        return evaluate_set(ctx.task, synthetic, test, rng, self.training, number, ctx.progress)
