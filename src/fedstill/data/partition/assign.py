"""Which client holds which training record.

Every training record lands at exactly one client. The test split is not an argument here, so
it cannot be touched. A partition is one int32 per record; a client's records are a slice of one
shared index, so a thousand clients take no more memory than ten.
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from fedstill.data.partition.rule import PartitionRule, TrainingLabels
from fedstill.data.partition.rules import parse_partition
from fedstill.errors import RequestError
from fedstill.files import read_safetensors, write_safetensors
from fedstill.rng import Rng

_MOST_CLIENTS = 10**7


@dataclass(frozen=True, eq=False)
class Partition:
    """The owner of every training record: ``owner`` is int32 [N], ``clients`` their number."""

    owner: Tensor
    clients: int
    _order: Tensor = field(init=False, repr=False)  # records sorted by owner
    _start: Tensor = field(init=False, repr=False)  # where each client's slice begins

    def __post_init__(self) -> None:
        object.__setattr__(self, "_order", torch.argsort(self.owner, stable=True))
        sizes = torch.bincount(self.owner, minlength=self.clients)
        start = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        object.__setattr__(self, "_start", start)

    def index(self, client: int) -> Tensor:
        """Positions (int64, ascending) of the client's records in the training split. A view."""
        if not 0 <= client < self.clients:
            raise IndexError(f"client {client} of {self.clients}")
        begin, end = self._start[client : client + 2].tolist()
        return self._order[begin:end]

    @property
    def sizes(self) -> Tensor:
        """Number of records of each client, int64 [clients]."""
        return self._start.diff()

    def counts(self, labels: Tensor, classes: int) -> Tensor:
        """Records of each class at each client: int64 [clients, classes].

        For texts, whose labels are [N, positions], positions are counted.
        """
        owner = self.owner.long().view(-1, *[1] * (labels.dim() - 1)).expand(labels.shape)
        cells = (owner * classes + labels.long())[labels >= 0]
        return torch.bincount(cells, minlength=self.clients * classes).view(self.clients, classes)

    @property
    def digest(self) -> str:
        """SHA-256 of the assignment, in hexadecimal."""
        owner = self.owner.numpy().astype("<i4")
        return hashlib.sha256(f"{self.clients}:".encode() + owner.tobytes()).hexdigest()

    def save(self, path: Path) -> None:
        """Write as a safetensors file, whole or not at all."""
        metadata = {"clients": self.clients, "digest": self.digest}
        write_safetensors(path, {"owner": self.owner}, metadata)

    @classmethod
    def load(cls, path: Path) -> "Partition":
        """Read back what ``save`` wrote; an altered file is refused."""
        try:
            tensors, metadata = read_safetensors(path)
            # A copy: a mapped tensor would follow later changes of the file.
            owner, clients = tensors["owner"].clone(), int(metadata["clients"])
            sound = owner.dtype == torch.int32 and owner.dim() == 1
            sound = sound and 1 <= clients <= _MOST_CLIENTS  # memory is taken for each
            # Empty where the nodes hold their own records.
            if not sound or (owner < 0).any() or (owner >= clients).any():
                raise ValueError("not a partition")
            partition = cls(owner, clients)
            if partition.digest != metadata["digest"]:
                raise ValueError("the checksum does not match")
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, OverflowError) as error:
            reason = str(error).split("\n")[0]
            raise RequestError(f"{path}: not a readable partition file ({reason})") from error
        return partition


def partition(
    labels: Tensor,
    rule: PartitionRule | str,
    clients: int | None,
    classes: int,
    rng: Rng,
    groups: Tensor | None = None,
    allow_empty: bool = False,
) -> Partition:
    """Partition the training records over ``clients`` by a rule.

    ``clients=None`` is for rules where the data decide. Pass the run's
    ``Rng(seed).at("partition")``: the same stream gives the same partition, bit for bit.
    """
    if isinstance(rule, str):
        rule = parse_partition(rule)
    if labels.dim() > 1 and rule.needs_classes:
        raise RequestError(
            f"partition {rule}: a text has no class of its own; "
            "use natural (one client per speaker), iid or quantity:ALPHA"
        )
    records = TrainingLabels(
        labels.cpu().numpy().astype(np.int64),
        classes,
        None if groups is None else groups.cpu().numpy().astype(np.int64),
    )
    number = rule.number_of_clients(clients, records)
    owner = rule.assign(records, number, rng, allow_empty)
    return Partition(torch.from_numpy(owner.astype(np.int32)), number)
