"""Synthetic sets: what methods of this kind send, and the files that runs keep of them.

A run keeps one safetensors file per round, ``synthetic/round-0005.safetensors``, with the images of
all clients: ``images``, ``labels``, ``client`` (one entry per row each) and a description. A set
that the server itself distilled is stored as that of client ``SERVER``, -1.

    >>> stored = load_set("runs/feddm-digits-001")  # its last round, or name the file
    >>> stored.images.shape, stored.of(3).labels, stored.metadata.class_names
    >>> DataLoader(stored, batch_size=64)  # it is a torch Dataset of (image, label)
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from fedstill.errors import RequestError, is_printable
from fedstill.files import read_safetensors, write_atomically
from fedstill.records import SERVER, SyntheticSet, union
from fedstill.runs.place import set_file, unopened
from fedstill.scaling import Scaling
from fedstill.wire import TensorSpec, tree


@dataclass(frozen=True)
class SetMetadata:
    """Where a stored set comes from and how to draw it."""

    method: str
    round: int
    data: str
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # of the scaling
    std: tuple[float, ...]
    shape: tuple[int, ...]  # of one image

    @property
    def scaling(self) -> Scaling:
        """What undoes the scaling of the images."""
        return Scaling(self.mean, self.std)


@dataclass(frozen=True, eq=False, repr=False)
class StoredSet(TorchDataset[tuple[Tensor, Tensor]]):
    """All clients' sets of one round: a torch ``Dataset`` of scaled images and labels."""

    images: Tensor
    labels: Tensor
    clients: Tensor  # int32, the client that each image is from
    metadata: SetMetadata

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]

    @property
    def classes(self) -> Tensor:
        """The class of each image: the likeliest one where labels are distributions."""
        return self.labels.argmax(1) if self.labels.is_floating_point() else self.labels

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.metadata.shape))
        classes, clients = len(self.classes.unique()), len(self.clients.unique())
        return (
            f"<StoredSet {self.metadata.method} on {self.metadata.data}, round "
            f"{self.metadata.round}: {len(self)} of shape {shape}, classes: {classes}, "
            f"clients: {clients}>"
        )

    def of(self, client: int) -> SyntheticSet:
        """One client's set."""
        rows = self.clients == client
        return SyntheticSet(self.images[rows], self.labels[rows])


def save_sets(path: Path, sets: Mapping[int, SyntheticSet], metadata: SetMetadata) -> None:
    """Write all clients' sets of one round to one file. Equal sets give equal bytes."""
    together = union(sets)
    clients = [torch.full((len(sets[c]),), c, dtype=torch.int32) for c in sorted(sets)]
    tensors = {"images": together.images, "labels": together.labels, "client": torch.cat(clients)}
    write_atomically(path, tree.pack(tensors, msgspec.to_builtins(metadata)))


def set_name(round: int) -> str:
    """The file name of a round's sets."""
    return f"round-{round:04d}.safetensors"


def load_set(path: str | os.PathLike[str]) -> StoredSet:
    """The sets in a file of ``save_sets``, or of a run folder's last round.

    Nothing in the file is executed, and its tensors are mapped into memory, not read: a file
    cannot ask for more memory than it has bytes.
    """
    file = set_file(Path(path))
    try:
        tensors, header = read_safetensors(file)
        metadata = msgspec.convert(header, SetMetadata)
        stored = StoredSet(tensors["images"], tensors["labels"], tensors["client"], metadata)
    except OSError as error:
        raise unopened(path, error) from error
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise RequestError(f"{path}: not a file of synthetic sets: {error}") from error
    names = (stored.metadata.method, stored.metadata.data, *stored.metadata.class_names)
    unreadable = [repr(name) for name in names if not is_printable(name)]
    complaint = f"{unreadable[0]} is no readable name" if unreadable else _complaint(stored)
    if complaint:
        raise RequestError(f"{path}: not a file of synthetic sets: {complaint}")
    return stored


def _complaint(stored: StoredSet) -> str | None:
    """What is wrong with the tensors of a file, if anything."""
    metadata = stored.metadata
    rows, classes = len(stored.clients), len(metadata.class_names)
    if not rows:
        return "it holds no images"
    labels = TensorSpec((rows,), torch.int64, 0, classes - 1)
    if stored.labels.is_floating_point():
        labels = TensorSpec((rows, classes))
    specs = {
        "images": (stored.images, TensorSpec((rows, *metadata.shape))),
        "labels": (stored.labels, labels),
        "client": (stored.clients, TensorSpec((rows,), torch.int32, low=SERVER)),
    }
    for name, (tensor, spec) in specs.items():
        complaint = spec.complaint(tensor)
        if complaint:
            return f"'{name}' {complaint}"
    channels = 1 if len(metadata.shape) == 2 else metadata.shape[0] if metadata.shape else 0
    if len(metadata.mean) != len(metadata.std) or len(metadata.mean) not in (0, 1, channels):
        return "the scaling does not fit the images"
    return None
