"""The ``[defence]`` section of a configuration. PyTorch is not imported for it."""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta


@dataclass(frozen=True)
class DefenceSettings:
    """The ``[defence]`` section. ``weigh`` lowers the weight of suspects, ``drop`` removes them."""

    mode: Literal["off", "weigh", "drop"] = "off"
    limit: Annotated[float, Meta(gt=0)] = 3.0  # robust standard deviations
    folds: Annotated[int, Meta(ge=2)] = 5  # groups of clients, each judged by a model of the rest
    steps: Annotated[int, Meta(ge=1)] = 40  # of training such a model
    learning_rate: Annotated[float, Meta(gt=0)] = 0.05
