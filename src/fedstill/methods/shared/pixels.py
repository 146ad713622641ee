"""Settings of methods whose clients optimise the pixels of synthetic images."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from fedstill.steps.augment import Augment
from fedstill.steps.distil import PixelOptimiser, PixelSteps


@dataclass(frozen=True, kw_only=True)
class PixelSettings:
    """How pixels are optimised. A method repeats a field only to give it another default."""

    real_batch: Annotated[int, Meta(ge=1)] = 256  # records per step on the real side
    pixel_optimiser: PixelOptimiser = "sgd"
    pixel_learning_rate: Annotated[float, Meta(gt=0)] = 1.0
    pixel_momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.5
    augment: Augment = "none"
    flip: bool = False  # whether DSA may mirror images: never for digits

    @property
    def pixels(self) -> PixelSteps:
        """The same settings as ``steps`` take them."""
        return PixelSteps(
            optimiser=self.pixel_optimiser,
            learning_rate=self.pixel_learning_rate,
            momentum=self.pixel_momentum,
            real_batch=self.real_batch,
            augment=self.augment,
            flip=self.flip,
        )
