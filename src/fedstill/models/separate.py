"""Networks that are not our own, computed record by record where privacy is on.

The private mechanism needs a network whose outputs for one record do not depend on the others of
a batch. That holds for the networks of this package. No test from outside can show it for another
one: it may normalise over the batch from eight records up, or at some weights only. So such a
network never sees more than one record: ``torch.func.vmap`` gives it a batch of one for each, and
where its operations do not support that, the records are computed one after another.
"""

from typing import Any

import torch
from torch import Tensor, nn

from fedstill.models.convnet import ConvNet
from fedstill.models.language import GRU, Transformer
from fedstill.models.linear import Linear, LinearOn
from fedstill.models.mlp import MLP
from fedstill.models.model import Model
from fedstill.models.resnet import ResNet18
from fedstill.types import Params

_OURS = (ConvNet, Linear, LinearOn, MLP, ResNet18, GRU, Transformer)


class Separate(Model):
    """Another network, which gets one record at a time."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._vmap = True  # until an operation turns out not to support it

    def init(self, generator: torch.Generator) -> Params:
        return self.model.init(generator)

    def newly_initialised(self, generator: torch.Generator) -> Params:
        return self.model.newly_initialised(generator)

    @property
    def start_note(self) -> str | None:
        return self.model.start_note

    @property
    def chunk(self) -> int:
        return self.model.chunk

    @property
    def continuous_shape(self) -> tuple[int, ...] | None:
        return self.model.continuous_shape

    @property
    def description(self) -> dict[str, Any]:
        return self.model.description

    def module(self, params: Params) -> nn.Module:
        return self.model.module(params)

    def __repr__(self) -> str:
        return repr(self.model)

    def features(self, params: Params, x: Tensor) -> tuple[Tensor, ...]:
        return self._one_by_one(self.model.features, params, x)

    def inference(self, params: Params, x: Tensor) -> tuple[Tensor, ...]:
        return self._one_by_one(self.model.inference, params, x)

    def apply(self, params: Params, x: Tensor) -> Tensor:
        return self._one_by_one(_single(self.model.apply), params, x)[0]

    @property
    def trains_differently(self) -> bool:
        return self.model.trains_differently

    def train_apply(self, params: Params, x: Tensor, draws: torch.Generator) -> Tensor:
        """Each record has random draws of its own."""
        if len(x) == 1:  # also inside a vmap over records, which then decides about the draws
            return self.model.train_apply(params, x, draws)
        train = _single(lambda params, x: self.model.train_apply(params, x, draws))
        return self._one_by_one(train, params, x, draws)[0]

    def apply_continuous(self, params: Params, x: Tensor) -> Tensor:
        return self._one_by_one(_single(self.model.apply_continuous), params, x)[0]

    def embed(self, params: Params, x: Tensor) -> Tensor:
        return self._one_by_one(_single(self.model.embed), params, x)[0]

    def _one_by_one(
        self, function: Any, params: Params, x: Tensor, draws: torch.Generator | None = None
    ) -> tuple[Tensor, ...]:
        def one(record: Tensor) -> tuple[Tensor, ...]:
            outputs: tuple[Tensor, ...] = function(params, record[None])
            return outputs

        before = draws.get_state() if draws is not None else None
        if self._vmap and len(x):
            try:
                outputs = torch.func.vmap(one, randomness="different")(x)
                return tuple(output.flatten(0, 1) for output in outputs)
            except (RuntimeError, NotImplementedError):
                self._vmap = False
                if draws is not None and before is not None:  # as if it had not been tried
                    draws.set_state(before)
        if not len(x):
            return tuple(output[:0] for output in one(x.new_zeros(x.shape[1:])))
        rows = [one(record) for record in x]
        return tuple(torch.cat(parts) for parts in zip(*rows, strict=True))


def _single(function: Any) -> Any:
    return lambda params, x: (function(params, x),)


def separate(model: Model) -> Model:
    """The network itself if it is our own, otherwise the same, record by record."""
    # Not a subclass: what a user's class overrides may mix records.
    return model if type(model) in _OURS or isinstance(model, Separate) else Separate(model)
