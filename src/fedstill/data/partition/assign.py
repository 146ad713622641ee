"""Which client holds which training record.

These are our own and not flwr-datasets' partitioners, for four reasons: those pull a large
stack (datasets, pandas, aiohttp) into the core install; the Dirichlet one gives up after ten
draws at a small alpha (100 clients at 0.05 fail); the pathological one silently drops the
classes that no client drew; and none of them draws from our named streams, so a partition
would depend on the version of another package.

Every training record lands at exactly one client. The test split is not an argument here, so
it cannot be touched. A partition is one int32 a record; a client's records are a slice of one
shared index, so a thousand clients take no more memory than ten.
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from fedstill.data.partition.rules import (
    deal_classes,
    deal_dirichlet,
    deal_iid,
    deal_natural,
    deal_quantity,
)
from fedstill.data.partition.spec import (
    Classes,
    Dirichlet,
    Iid,
    Natural,
    Nodes,
    PartitionSpec,
    Quantity,
    parse_partition,
)
from fedstill.errors import RequestError
from fedstill.files import read_safetensors, write_safetensors
from fedstill.rng import Rng


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
        return self._order[self._start[client] : self._start[client + 1]]

    @property
    def sizes(self) -> Tensor:
        """Number of records of each client, int64 [clients]."""
        return self._start.diff()

    def counts(self, labels: Tensor, classes: int) -> Tensor:
        """Records of each class at each client: int64 [clients, classes].

        Of texts, whose labels are [N, positions], it is the positions that are counted.
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
            # Empty where the nodes hold records of their own.
            if not sound or (owner < 0).any() or (owner >= clients).any() or clients < 1:
                raise ValueError("not a partition")
            partition = cls(owner, clients)
            if partition.digest != metadata["digest"]:
                raise ValueError("the checksum does not match")
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            reason = str(error).split("\n")[0]
            raise RequestError(f"{path}: not a readable partition file ({reason})") from error
        return partition


def partition(
    labels: Tensor,
    spec: PartitionSpec | str,
    clients: int | None,
    classes: int,
    rng: Rng,
    groups: Tensor | None = None,
    allow_empty: bool = False,
) -> Partition:
    """Deal the training records out to ``clients``, as ``spec`` says.

    ``clients=None`` is for ``natural`` alone, where the data decide. Pass the run's
    ``Rng(seed).at("partition")``: the same stream gives the same partition, bit for bit.
    """
    if isinstance(spec, str):
        spec = parse_partition(spec)
    if labels.dim() > 1 and isinstance(spec, Dirichlet | Classes):
        raise RequestError(
            f"partition {spec}: a text has no class of its own; "
            "use natural (one client a speaker), iid or quantity:ALPHA"
        )
    known = labels.cpu().numpy().astype(np.int64)
    if isinstance(spec, Nodes):
        return Partition(torch.zeros(0, dtype=torch.int32), _checked(clients))
    if isinstance(spec, Natural):
        owner, clients = deal_natural(None if groups is None else groups.cpu().numpy(), clients)
    else:
        clients = _checked(clients)
        if clients > len(known):
            raise RequestError(
                f"clients = {clients}: more than the {len(known)} training records; "
                "use fewer clients"
            )
        owner = _deal(known, spec, clients, classes, rng, allow_empty)
    return Partition(torch.from_numpy(owner.astype(np.int32)), clients)


def _deal(
    labels: NDArray[np.int64],
    spec: Iid | Dirichlet | Classes | Quantity,
    clients: int,
    classes: int,
    rng: Rng,
    allow_empty: bool,
) -> NDArray[np.int64]:
    match spec:
        case Iid():
            return deal_iid(len(labels), clients, rng)
        case Dirichlet(alpha):
            return deal_dirichlet(labels, alpha, clients, classes, rng, allow_empty)
        case Classes(per_client):
            return deal_classes(labels, per_client, clients, classes, rng, allow_empty)
        case Quantity(alpha):
            return deal_quantity(len(labels), alpha, clients, rng, allow_empty)


def _checked(clients: int | None) -> int:
    if clients is None:
        raise RequestError("the number of clients is missing; set clients")
    if clients < 1:
        raise RequestError(f"clients = {clients}: must be 1 or more")
    return clients
