"""The table of networks."""

from dataclasses import dataclass, field, fields
from typing import Any

from torch import nn

from fedstill.errors import RequestError
from fedstill.models.convnet import ConvNet
from fedstill.models.language import GRU, Transformer
from fedstill.models.mlp import MLP
from fedstill.models.model import Model
from fedstill.models.resnet import ResNet18
from fedstill.registry import import_object, refuse_unknown
from fedstill.rng import Rng, lent

__all__ = [
    "GRU",
    "MLP",
    "MODELS",
    "ConvNet",
    "Model",
    "ModelEntry",
    "ResNet18",
    "Transformer",
    "find_model",
]

DEFAULT_MODEL = "convnet-small"


@dataclass(frozen=True)
class ModelEntry:
    """A line of the table: the class, what it is, and where it departs from its defaults."""

    cls: type[Any]
    description: str
    defaults: dict[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """What ``[model]`` may set, with the defaults; the data decide shape and classes."""
        own = {f.name: f.default for f in fields(self.cls) if f.name not in ("shape", "classes")}
        return {**own, **self.defaults}


MODELS: dict[str, ModelEntry] = {
    "convnet": ModelEntry(ConvNet, "3 convolution blocks, width 128: the papers' network"),
    "convnet-small": ModelEntry(
        ConvNet, "the same with width 32: the default, quick on a laptop", {"width": 32}
    ),
    "gru": ModelEntry(GRU, "next token of a text: embeddings and 128 gated recurrent units"),
    "mlp": ModelEntry(MLP, "fully connected, 2 hidden layers of 200 units"),
    "resnet18": ModelEntry(ResNet18, "ResNet-18 for small images, without batch norm"),
    "transformer": ModelEntry(
        Transformer, "next token of a text: 2 attention blocks of width 64, 4 heads"
    ),
}


def find_model(name: str) -> ModelEntry | None:
    """The table's entry; ``None`` for a user's own ``package.module:name``."""
    if name in MODELS:
        return MODELS[name]
    if ":" in name:
        return None
    raise refuse_unknown("model", "model", name, MODELS)


def build_own(
    name: str, settings: dict[str, Any], shape: tuple[int, ...], classes: int, rng: Rng
) -> Model:
    """A user's own network: ``package.module:make`` is called as ``make(shape, classes, ...)``.

    It may return a ``Model`` or an ``nn.Module``. What it draws from PyTorch's global generator
    comes from ``rng``, so that every process builds the same.
    """
    make = import_object("model", name)
    try:
        with lent(rng.torch()):
            built = make(shape, classes, **settings)
    except Exception as error:  # whatever the user's own code raises
        reason = f"{type(error).__name__}: {error}"
        raise RequestError(f"model: {name}(shape, classes, ...): {reason}") from error
    if isinstance(built, nn.Module):
        built = Model.from_module(built)
    if not isinstance(built, Model):
        raise RequestError(f"model: {name} returned {type(built).__name__}, not a network")
    return built
