"""One linear layer on a fixed public feature map."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import torch
from msgspec import Meta
from torch import Tensor

from fedstill.features import FeatureMap, make_features, projected
from fedstill.models.mlp import MLP
from fedstill.models.model import Model
from fedstill.types import Params


class OnFeatures(Model):
    """A linear layer on a feature map; only the layer has weights.

    The map of a record never changes, so a run computes it once per record and then trains ``head``
    on the vectors (``data/mapped.py``).
    """

    classes: int

    @property
    @abstractmethod
    def fixed(self) -> FeatureMap: ...

    @cached_property
    def head(self) -> Model:
        return MLP((self.fixed.size,), self.classes, depth=0)

    @property
    def chunk(self) -> int:
        return self.fixed.chunk

    def init(self, generator: torch.Generator) -> Params:
        return self.head.init(generator)

    def features(self, params: Params, x: Tensor) -> tuple[Tensor, ...]:
        return self.head.features(params, self.fixed(x))


class LinearOn(OnFeatures):
    """A linear layer on a map that is given as an object."""

    def __init__(self, features: FeatureMap, classes: int) -> None:
        self._fixed, self.classes = features, classes

    @property
    def fixed(self) -> FeatureMap:
        return self._fixed

    @property
    def description(self) -> dict[str, Any]:
        return {**super().description, "features": repr(self._fixed)}


@dataclass(frozen=True)
class Linear(OnFeatures):
    """A linear layer on ``features``, shortened to ``projection`` numbers where that is set."""

    shape: tuple[int, ...]
    classes: int
    feature_map: str = "auto"
    projection: Annotated[int, Meta(ge=1)] | None = None
    feature_seed: Annotated[int, Meta(ge=0)] = 0

    @cached_property
    def fixed(self) -> FeatureMap:
        found = make_features(self.feature_map, self.shape, self.feature_seed)
        return projected(found, self.projection, self.feature_seed)
