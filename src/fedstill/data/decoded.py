"""Records as they come out of any source: decoded, checked and fingerprinted, not yet scaled."""

import hashlib
import json
from dataclasses import dataclass

from torch import Tensor

from fedstill.data.column import Column
from fedstill.records import Split


@dataclass(frozen=True)
class Decoded:
    """Both splits with the names of their classes and (where known) of their natural owners."""

    train: Split
    test: Split
    class_names: tuple[str, ...]
    group_names: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()  # of a table: what its features are

    @property
    def channels(self) -> int:
        """Channels of an image; 1 for flat inputs."""
        inputs = self.train.inputs
        return int(inputs.shape[1]) if inputs.dim() > 2 else 1

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor under a fixed name: what is stored and what is hashed."""
        named = {
            "train.inputs": self.train.inputs,
            "train.labels": self.train.labels,
            "train.groups": self.train.groups,
            "test.inputs": self.test.inputs,
            "test.labels": self.test.labels,
            "test.groups": self.test.groups,
        }
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def fingerprint(self) -> str:
        """SHA-256 over names, shapes, types and bytes: the same data, the same fingerprint."""
        tensors = self.tensors()
        digest = hashlib.sha256()
        shapes = [(name, str(t.dtype), list(t.shape)) for name, t in tensors.items()]
        digest.update(json.dumps([shapes, self.class_names, self.group_names]).encode())
        for tensor in tensors.values():
            # A view, not a copy: the images may be mapped from disk and larger than memory.
            digest.update(tensor.contiguous().view(-1).numpy().data)
        return digest.hexdigest()
