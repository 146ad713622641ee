"""The objects that a user supplied in Python for an experiment."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from fedstill.config import Experiment
from fedstill.config.nested import Table, as_table
from fedstill.config.registry import supplied_model
from fedstill.data import Dataset
from fedstill.features import Backbone
from fedstill.models import LinearOn, Model
from fedstill.types import AnyMethod


@dataclass(frozen=True)
class UserObjects:
    """Objects supplied in Python instead of names; the run folder records their names."""

    method: AnyMethod | None = None
    data: Dataset | None = None
    model: Model | nn.Module | None = None
    model_name: str | None = None
    features: nn.Module | None = None  # frozen, under a linear layer

    @property
    def request(self) -> Table:
        """The objects as they appear in the configuration."""
        request: Table = {}
        if self.method is not None:
            request["method"] = {"name": path_of(self.method), **as_table(self.method)}
        if self.data is not None:
            request["data"] = {"name": self.data.name}
        if self.model is not None:
            request["model"] = {"name": self.model_name}
        if self.features is not None:
            request["model"] = {"name": "linear", "feature_map": path_of(self.features)}
        return request

    @property
    def portable(self) -> bool:
        """Whether another process can build the same from names alone."""
        return self.method is None and self.model is None and self.features is None

    def network(self, experiment: Experiment, data: Dataset) -> Model | None:
        """The supplied network for these data, if there is one."""
        if self.features is not None:
            return LinearOn(Backbone(self.features, data.shape), data.classes)
        return None if self.model is None else supplied_model(self.model, experiment.model)


def path_of(value: Any) -> str:
    """``package.module:Class`` of an object."""
    return f"{type(value).__module__}:{type(value).__qualname__}"
