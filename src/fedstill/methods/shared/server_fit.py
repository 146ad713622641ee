"""The one training of a server on the images that it received: its settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from fedstill.scaling import Kind
from fedstill.steps.training import Schedule, Training
from fedstill.steps.warp import ImageAugment, chosen_augment
from fedstill.types import Task

# Steps of the server per round: fewer where no augmentation varies what it trains on.
STEPS: Mapping[Kind, int] = {"writing": 600, "grey": 600, "photo": 600, "tiny": 150, "other": 40}


def augment_choice(augment: ImageAugment, task: Task) -> dict[str, str]:
    """What ``server_augment = "auto"`` stands for, to be shown to the user."""
    if augment != "auto":
        return {}
    return {"server_augment": f"auto: {chosen_augment(augment, task)}"}


@dataclass(frozen=True, kw_only=True)
class ServerFit:
    """How a server trains on images. A method repeats a field only to give it another default."""

    server_learning_rate: Annotated[float, Meta(gt=0)] = 0.02
    server_momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    server_batch: Annotated[int, Meta(ge=1)] = 256
    server_schedule: Schedule = "constant"  # of the server's learning rate, within a round
    server_augment: ImageAugment = "none"  # of the images in the server's training
    # Every class has the same share in every batch, however many images of it were sent.
    server_balanced: bool = False
    server_average: Annotated[float, Meta(ge=0, lt=1)] = 0.0  # decay of a running mean of weights
    flip: bool = False  # whether DSA may mirror images: never for digits

    def choices(self, task: Task) -> Mapping[str, str]:
        return augment_choice(self.server_augment, task)

    def training_for(self, epochs: int = 1) -> Training:
        """The server's training on the images."""
        return Training(
            learning_rate=self.server_learning_rate,
            momentum=self.server_momentum,
            batch_size=self.server_batch,
            epochs=epochs,
            schedule=self.server_schedule,
            augment=self.server_augment,
            flip=self.flip,
            balanced=self.server_balanced,
            average=self.server_average,
        )
