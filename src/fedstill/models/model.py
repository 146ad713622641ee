"""A network as pure functions of its weights."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from fedstill.features import FeatureMap
from fedstill.types import Params

if TYPE_CHECKING:
    from fedstill.models.kernels.derivatives import Form
    from fedstill.models.module import ModuleNorm

Forward = Callable[[Tensor], tuple[Tensor, ...]]  # inputs to outputs, with given weights
Searched = tuple[Any, ...] | range  # the values that a search may try
StartWeights = Literal["keep", "new"]  # of a user-supplied network


class Model(ABC):
    """A network as pure functions: weights and inputs to outputs, without state."""

    @property
    def chunk(self) -> int:
        """How many inputs at a time keep the activations in the processor's cache."""
        return 64

    @property
    def record_chunk(self) -> int:
        """How many records' own gradients are computed at a time."""
        return self.chunk

    @abstractmethod
    def init(self, generator: torch.Generator) -> Params:
        """The weights that training starts from: newly initialised ones, drawn from this generator
        alone, or those that the network brings along (a user-supplied, pretrained module)."""

    def newly_initialised(self, generator: torch.Generator) -> Params:
        """Newly initialised weights in any case, drawn from this generator alone."""
        return self.init(generator)

    @abstractmethod
    def features(self, params: Params, x: Tensor) -> tuple[Tensor, ...]:
        """Outputs layer by layer: the last is the logits, the one before feeds the last layer."""

    def outputs(self, params: Params, shape: tuple[int, ...]) -> int:
        """How many outputs ``features`` gives for inputs of this shape, the logits included."""
        with torch.no_grad():
            x = next(iter(params.values())).new_zeros(1, *shape)
            return len(self.features(params, x))

    def inference(self, params: Params, x: Tensor) -> tuple[Tensor, ...]:
        """The same as ``features`` up to rounding, without gradients."""
        return self.features(params, x)

    @property
    def fast_inference(self) -> bool:
        """Whether ``inference`` is faster than ``features``, and ``pixel_features_by`` too."""
        return False

    def inference_by(self, params: Params, last: int) -> Forward:
        """``inference`` of the last outputs, for many chunks of inputs and one set of weights."""
        return lambda x: self.inference(params, x)[-last:]

    def pixel_features_by(self, params: Params, last: int) -> Forward:
        """``features`` of the last outputs, with a gradient for the inputs alone."""
        return lambda x: self.features(params, x)[-last:]

    def written_out(self, records: int, order: int) -> "Form | None":
        """How the derivatives of ``apply`` up to this order are written out, if they are and that
        is faster than autograd on a batch of so many records. ``None``: autograd is used."""
        return None

    def apply(self, params: Params, x: Tensor) -> Tensor:
        """Logits [N, classes]; of a text [N, positions, classes]."""
        return self.features(params, x)[-1]

    def train_apply(self, params: Params, x: Tensor, draws: torch.Generator) -> Tensor:
        """The same in training mode: with dropout, whose random draws come from ``draws``.

        Our own networks compute the same in both modes.
        """
        return self.apply(params, x)

    @property
    def trains_differently(self) -> bool:
        """Whether ``train_apply`` may differ from ``apply``."""
        return False

    @property
    def draws_in_training(self) -> bool:
        """Whether ``train_apply`` is a network's own, and may take random draws."""
        return self.trains_differently or type(self).train_apply is not Model.train_apply

    @property
    def statistics(self) -> frozenset[str]:
        """Names among the weights that training mode updates by itself, and no gradient does: the
        running statistics of batch norms. Not empty: training mode mixes the records of a batch."""
        return frozenset()

    @property
    def start_note(self) -> str | None:
        """What a user should know about the weights that training starts from, if anything."""
        return None

    @property
    def fixed(self) -> FeatureMap | None:
        """A fixed map that comes before all weights: a run applies it once to every record, and
        then works with ``head`` on the vectors. ``None``: there is none."""
        return None

    @property
    def head(self) -> "Model":
        """The network behind ``fixed``; the network itself where there is none."""
        return self

    @property
    def continuous_shape(self) -> tuple[int, ...] | None:
        """Shape of one input of ``apply_continuous``: the space of synthetic inputs.

        ``None``: inputs are real numbers already, so it is the shape of the task's inputs. A
        network that reads tokens overrides this and the two functions below.
        """
        return None

    def apply_continuous(self, params: Params, x: Tensor) -> Tensor:
        """Logits of real-valued inputs: of embeddings, where inputs are tokens."""
        return self.apply(params, x)

    def embed(self, params: Params, x: Tensor) -> Tensor:
        """The real-valued inputs that represent these inputs."""
        return x

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight tensor, in order."""
        return {k: tuple(v.shape) for k, v in self.init(torch.Generator()).items()}

    @property
    def size(self) -> int:
        """Number of weights."""
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())

    @classmethod
    def search_space(cls, shape: tuple[int, ...]) -> Mapping[str, Searched]:
        """Settings that an architecture search tries for inputs of this shape; empty: none.

        A tuple holds values to choose from, a range whole numbers that lie close together.
        """
        return {}

    @property
    def description(self) -> dict[str, Any]:
        """The network as plain values, which are hashed to recognise the same one again."""
        cls = type(self)
        settings: dict[str, str] = (
            {f.name: str(vars(self).get(f.name, f.default)) for f in dataclasses.fields(self)}
            if dataclasses.is_dataclass(self)
            else {}
        )
        return {
            "class": f"{cls.__module__}:{cls.__qualname__}",
            "settings": settings,
            "weights": {name: list(shape) for name, shape in self.shapes.items()},
        }

    def module(self, params: Params) -> nn.Module:
        """The network with these weights as an ``nn.Module`` of its own."""
        from fedstill.models.as_module import NetworkModule

        return NetworkModule(self, params)

    @staticmethod
    def from_module(
        module: nn.Module,
        layers: Sequence[str] | None = None,
        weights: StartWeights = "keep",
        norm: "ModuleNorm | None" = None,
    ) -> "Model":
        """Any ``nn.Module`` as a model; see :class:`fedstill.models.module.ModuleModel`.

        >>> fedstill.Model.from_module(resnet, weights="new", norm="group")
        """
        from fedstill.models.module import ModuleModel

        return ModuleModel(module, layers, weights, norm)
