"""A user-supplied ``nn.Module`` as a model."""

import copy
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from fedstill.errors import RequestError
from fedstill.models.model import Model
from fedstill.rng import borrowed
from fedstill.types import Params

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # an object's address differs between processes


class ModuleModel(Model):
    """Wraps a module that maps a batch of inputs to logits.

    ``layers`` names the submodules whose outputs are the features, in order; left out, the
    input of the last ``nn.Linear`` is the only one. The module itself is copied, never trained.

    Training starts from newly initialised weights, by each submodule's ``reset_parameters``, unless
    ``keep_weights`` requests the module's present ones. Parameters that do not require a gradient
    are constants: they keep their values and are not sent.
    """

    def __init__(
        self,
        module: nn.Module,
        layers: Sequence[str] | None = None,
        keep_weights: bool = False,
    ) -> None:
        self._module = copy.deepcopy(module).eval()
        self._keep_weights = keep_weights
        submodules = dict(self._module.named_modules())
        for name, submodule in submodules.items():
            if isinstance(submodule, _BatchNorm):
                raise RequestError(
                    f"model: '{name}' is a batch norm, which mixes the records of a batch and "
                    "stores their statistics; use GroupNorm or InstanceNorm instead"
                )
        unknown = [name for name in layers or () if name not in submodules]
        if unknown:
            raise RequestError(
                f"model: no submodule '{unknown[0]}'; there are: "
                + ", ".join(filter(None, submodules))
            )
        linear = [m for m in submodules.values() if isinstance(m, nn.Linear)]
        if layers is None and not linear:
            raise RequestError("model: no nn.Linear in this module; name its feature `layers`")
        self._watched = [submodules[name] for name in layers] if layers else []
        self._last = linear[-1] if linear else None

    def init(self, generator: torch.Generator) -> Params:
        """Each submodule's ``reset_parameters``, with its randomness from ``generator``."""
        module = copy.deepcopy(self._module)
        with borrowed(generator):
            for submodule in module.modules():
                reset = getattr(submodule, "reset_parameters", None)
                frozen = any(not p.requires_grad for p in submodule.parameters())
                if callable(reset) and not frozen and not self._keep_weights:
                    reset()
        return {k: v.detach().clone() for k, v in module.named_parameters() if v.requires_grad}

    @property
    def description(self) -> dict[str, Any]:
        modules = {
            name: [
                f"{type(part).__module__}:{type(part).__qualname__}",
                _ADDRESS.sub("", part.extra_repr()),
            ]
            for name, part in self._module.named_modules()
        }
        return {**super().description, "modules": modules}

    def __repr__(self) -> str:
        return repr(self._module)

    def features(self, params: Params, x: Tensor) -> tuple[Tensor, ...]:
        outputs: list[Tensor] = []
        hooks = [
            watched.register_forward_hook(lambda _module, _inputs, out: outputs.append(out))
            for watched in self._watched
        ]
        if not self._watched and self._last is not None:
            hooks.append(
                self._last.register_forward_pre_hook(
                    lambda _module, inputs: outputs.append(inputs[0])
                )
            )
        try:
            logits = self.apply(params, x)
        finally:
            for hook in hooks:
                hook.remove()
        return (*outputs, logits)

    def apply(self, params: Params, x: Tensor) -> Tensor:
        # Copies: a module that changes its buffers must not carry records to the next call.
        buffers = {name: buffer.clone() for name, buffer in self._module.named_buffers()}
        logits: Tensor = functional_call(self._module, {**buffers, **params}, (x,))
        return logits
