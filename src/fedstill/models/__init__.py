"""The table of networks."""

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from fedstill.imports import import_object, import_when_used

if TYPE_CHECKING:
    from fedstill.models.convnet import ConvNet
    from fedstill.models.language import GRU, Transformer
    from fedstill.models.linear import Linear, LinearOn, OnFeatures
    from fedstill.models.mlp import MLP
    from fedstill.models.model import Model
    from fedstill.models.norms import convert_norms
    from fedstill.models.resnet import ResNet18
    from fedstill.models.separate import separate

__all__ = [
    "DEFAULT_MODEL",
    "GRU",
    "MLP",
    "MODELS",
    "ConvNet",
    "Linear",
    "LinearOn",
    "Model",
    "ModelEntry",
    "OnFeatures",
    "ResNet18",
    "Transformer",
    "convert_norms",
    "separate",
]

DEFAULT_MODEL = "convnet-small"


@dataclass(frozen=True)
class ModelEntry:
    """An entry of the table: the class, a description, and its departures from the defaults."""

    place: str  # package.module:Class, imported when it is used
    description: str
    defaults: dict[str, Any] = field(default_factory=dict)
    searched: bool = True  # by `fedstill tune`, where its class has a search space

    @property
    def cls(self) -> type[Any]:
        """The class of the network."""
        found: type[Any] = import_object("model", self.place)
        return found

    @property
    def settings(self) -> dict[str, Any]:
        """What ``[model]`` may set, with the defaults; shape and classes come from the data."""
        given = ("shape", "classes")
        settings = {f.name: f.default for f in fields(self.cls) if f.name not in given}
        return {**settings, **self.defaults}


MODELS: dict[str, ModelEntry] = {
    "convnet": ModelEntry(
        "fedstill.models.convnet:ConvNet", "3 convolution blocks, width 128: the papers' network"
    ),
    "convnet-small": ModelEntry(
        "fedstill.models.convnet:ConvNet",
        "the same with width 32: the default, fast on a laptop",
        {"width": 32},
        False,
    ),
    "gru": ModelEntry(
        "fedstill.models.language:GRU",
        "next token of a text: embeddings and 128 gated recurrent units",
    ),
    "linear": ModelEntry(
        "fedstill.models.linear:Linear",
        "one linear layer on a fixed feature map: `fedstill list features`",
        searched=False,
    ),
    "mlp": ModelEntry("fedstill.models.mlp:MLP", "fully connected, 2 hidden layers of 200 units"),
    "resnet18": ModelEntry(
        "fedstill.models.resnet:ResNet18", "ResNet-18 for small images, without batch norm"
    ),
    "transformer": ModelEntry(
        "fedstill.models.language:Transformer",
        "next token of a text: 2 attention blocks of width 64, 4 heads",
    ),
}

import_when_used(
    __name__,
    {
        "ConvNet": "fedstill.models.convnet",
        "GRU": "fedstill.models.language",
        "Transformer": "fedstill.models.language",
        "Linear": "fedstill.models.linear",
        "LinearOn": "fedstill.models.linear",
        "OnFeatures": "fedstill.models.linear",
        "MLP": "fedstill.models.mlp",
        "Model": "fedstill.models.model",
        "convert_norms": "fedstill.models.norms",
        "ResNet18": "fedstill.models.resnet",
        "separate": "fedstill.models.separate",
    },
)
