"""A user-supplied ``nn.Module`` as a model."""

import copy
import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from fedstill.errors import RequestError
from fedstill.models.model import Model, StartWeights
from fedstill.models.norms import Replacement, batch_norms, convert_norms
from fedstill.rng import borrowed
from fedstill.types import Params

ModuleNorm = Replacement | Literal["batch"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # an object's address differs between processes


class ModuleModel(Model):
    """Wraps a module that maps a batch of inputs to logits.

    ``layers`` names the submodules whose outputs are the features, in order; left out, the
    input of the last ``nn.Linear`` is the only one. The module itself is copied, never trained.

    Training starts from the weights that the module has, or from newly initialised ones, by each
    submodule's ``reset_parameters``, if ``weights`` is ``"new"``. Parameters that do not require a
    gradient are constants: they keep their values and are not sent.

    ``norm`` says what becomes of batch norms: see ``convert_norms``; ``"batch"`` leaves them as
    they are, and their running statistics are sent and averaged as the weights are.
    """

    def __init__(
        self,
        module: nn.Module,
        layers: Sequence[str] | None = None,
        weights: StartWeights = "keep",
        norm: ModuleNorm | None = None,
    ) -> None:
        if any(is_lazy(part) for part in (*module.parameters(), *module.buffers())):
            raise RequestError("model: a lazy layer has no weights yet; call the module once first")
        converted = module if norm is None or norm == "batch" else convert_norms(module, norm)
        self._module = copy.deepcopy(converted).eval()
        self._weights = weights
        self._batch_norms = batch_norms(self._module)
        if norm != "batch" and self._batch_norms:
            raise RequestError(
                f"model: '{next(iter(self._batch_norms))}' is a batch norm, which mixes the "
                "records of a batch and stores their statistics; set model.norm = 'group' (or "
                "'instance', or 'frozen' for a pretrained network), or convert the module by "
                "fedstill.convert_norms(module, 'group'); FedAvg can use 'batch'"
            )
        for name, part in self._batch_norms.items():
            if part.running_mean is None or part.momentum is None:
                raise RequestError(
                    f"model.norm = 'batch': '{name}' needs running statistics and a momentum"
                )
        submodules = dict(self._module.named_modules())
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

    @property
    def statistics(self) -> frozenset[str]:
        """The running means and variances of batch norms: sent with the weights, not trained."""
        names = ("running_mean", "running_var")
        return frozenset(
            f"{norm}.{name}".lstrip(".") for norm in self._batch_norms for name in names
        )

    def init(self, generator: torch.Generator) -> Params:
        """The module's own weights, or newly initialised ones: as ``weights`` says."""
        return (
            self._values(self._module) if self.keeps_weights else self.newly_initialised(generator)
        )

    def newly_initialised(self, generator: torch.Generator) -> Params:
        """Each submodule's ``reset_parameters``, with its randomness from ``generator``."""
        module = copy.deepcopy(self._module)
        with borrowed(generator):
            for submodule in module.modules():
                reset = getattr(submodule, "reset_parameters", None)
                frozen = any(not p.requires_grad for p in submodule.parameters())
                if callable(reset) and not frozen:
                    reset()
        return self._values(module)

    def _values(self, module: nn.Module) -> Params:
        trained = {k: v for k, v in module.named_parameters() if v.requires_grad}
        statistics = {k: v for k, v in module.named_buffers() if k in self.statistics}
        return {k: v.detach().clone() for k, v in (trained | statistics).items()}

    @property
    def keeps_weights(self) -> bool:
        """Whether training starts from the weights that the module has."""
        return self._weights == "keep"

    @property
    def start_note(self) -> str | None:
        if not self.keeps_weights:
            return None
        return (
            "training starts from the weights that the network has; "
            "model.weights = 'new' draws new ones"
        )

    def module(self, params: Params) -> nn.Module:
        """A copy of the user's module with these weights."""
        module = copy.deepcopy(self._module)
        module.load_state_dict(params, strict=False)
        return module

    @property
    def description(self) -> dict[str, Any]:
        modules = {
            name: [
                f"{type(part).__module__}:{type(part).__qualname__}",
                _ADDRESS.sub("", part.extra_repr()),
            ]
            for name, part in self._module.named_modules()
        }
        return {**super().description, "modules": modules, "constants": self._constants()}

    def _constants(self) -> str:
        """SHA-256 of what is neither trained nor sent: every process must have the same."""
        digest = hashlib.sha256()
        trained = self.shapes.keys()
        for name, value in self._module.state_dict().items():
            if name not in trained and not name.endswith("num_batches_tracked"):
                digest.update(name.encode())
                digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()

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
        return self._call(params, x)

    @property
    def trains_differently(self) -> bool:
        return True

    def train_apply(self, params: Params, x: Tensor, draws: torch.Generator) -> Tensor:
        """In training mode. Batch norms update their running statistics in ``params``, in place."""
        with borrowed(draws, x.device), self._in_training(len(x)):
            # Detached, they share their memory with the weights that are being trained.
            statistics = {name: params[name].detach() for name in self.statistics}
            return self._call({**params, **statistics}, x)

    def _call(self, params: Params, x: Tensor) -> Tensor:
        # Copies: a module that changes its buffers must not carry records to the next call.
        buffers = {name: buffer.clone() for name, buffer in self._module.named_buffers()}
        logits: Tensor = functional_call(self._module, {**buffers, **params}, (x,))
        return logits

    @contextmanager
    def _in_training(self, records: int) -> Iterator[None]:
        self._module.train()
        if records == 1:  # one record has no spread: its batch norms use the running statistics
            for norm in self._batch_norms.values():
                norm.eval()
        try:
            yield
        finally:
            self._module.eval()
