"""A frozen network of the user's as a feature map: what people with real images have."""

import copy
import hashlib
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.errors import RequestError
from fedstill.features.base import FeatureMap, unit

_PROBES = (2, 5)  # records in a batch


class Backbone(FeatureMap):
    """A module with its present weights, in evaluation mode, that maps inputs to vectors.

    The module is copied, never trained, and tested once on random inputs: an output that is no
    vector, is not finite, or depends on the other inputs of a batch is refused.
    """

    def __init__(self, module: nn.Module, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._module = copy.deepcopy(module).eval().requires_grad_(False)
        self.size_found = self._tested()

    @property
    def size(self) -> int:
        return self.size_found

    @property
    def chunk(self) -> int:
        return 32

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        return unit(self._module.to(x.device)(x).float())

    @cached_property
    def fingerprint(self) -> str:
        """Weights and layers do not tell what the user's ``forward`` does with them: its outputs
        for random inputs do."""
        outputs = self(self._probes()).numpy().tobytes()
        return f"{self!r} {hashlib.sha256(outputs).hexdigest()}"

    def _probes(self) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(max(_PROBES), *self.shape, generator=generator)

    def _tested(self) -> int:
        x = self._probes()
        try:
            with torch.no_grad():
                alone, *batches = (self._module(x[:number]) for number in (1, *_PROBES))
        except Exception as error:  # whatever the user's code raises
            reason = f"{type(error).__name__}: {error}"
            raise RequestError(
                f"model.feature_map: the network cannot read inputs of shape {self.shape}: {reason}"
            ) from error
        for found in (alone, *batches):
            if not isinstance(found, Tensor) or found.dim() != 2:
                what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
                raise RequestError(
                    f"model.feature_map: the network must map N inputs to [N, size], not to "
                    f"{what}; end it with a pooling and nn.Flatten()"
                )
            if not bool(torch.isfinite(found).all()):
                raise RequestError(
                    "model.feature_map: the network's output for a random input is not finite"
                )
        if any(not torch.allclose(b[:1], alone, rtol=1e-3, atol=1e-4) for b in batches):
            raise RequestError(
                "model.feature_map: the network's output for a record depends on the other records "
                "of the batch; use a network that maps every record by itself"
            )
        return int(alone.shape[1])

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256(repr(self._module).encode())
        for name, tensor in self._module.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    def __repr__(self) -> str:
        return f"Backbone({self._digest})"

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Backbone) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))
