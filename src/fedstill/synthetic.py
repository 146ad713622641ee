"""Synthetic sets: what methods of this kind send, and the files that runs keep of them.

A run keeps one safetensors file a round, ``synthetic/round-0005.safetensors``, with the images of
all clients: ``images``, ``labels``, ``client`` (one entry a row each) and a description. A set that
the server itself distilled is stored as that of client ``SERVER``, -1.

    >>> stored = load_set("runs/feddm-digits-001")  # its last round, or name the file
    >>> stored.images.shape, stored.of(3).labels, stored.about.class_names
    >>> DataLoader(stored, batch_size=64)  # it is a torch Dataset of (image, label)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from fedstill import tree
from fedstill.data.dataset import Scaling
from fedstill.errors import RequestError
from fedstill.files import read_safetensors, write_atomically
from fedstill.types import Task
from fedstill.wire import TensorSpec

SERVER = -1  # whose images those are that the server distilled


@dataclass(frozen=True)
class SyntheticSet:
    """Images [n, ...] as the network sees them (scaled), and their labels.

    Labels are class numbers, int64 [n], or distributions over the classes, float [n, classes].
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise ValueError(f"{len(self.images)} images but {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class About:
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


@dataclass(frozen=True, eq=False)
class StoredSet(TorchDataset[tuple[Tensor, Tensor]]):
    """All clients' sets of one round: a torch ``Dataset`` of scaled images and labels."""

    images: Tensor
    labels: Tensor
    clients: Tensor  # int32, the client that each image is from
    about: About

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]

    @property
    def classes(self) -> Tensor:
        """The class of each image: the likeliest one where labels are distributions."""
        return self.labels.argmax(1) if self.labels.is_floating_point() else self.labels

    def of(self, client: int) -> SyntheticSet:
        """One client's set."""
        own = self.clients == client
        return SyntheticSet(self.images[own], self.labels[own])


def set_specs(task: Task, images_per_class: int, field: str) -> dict[str, TensorSpec]:
    """What a set of hard-labelled images looks like on the wire, under the field ``field``."""
    if task.model.continuous_shape is not None:
        raise RequestError(
            "method: it distils images of every class, and the records are text; "
            "fedavg, fedprox, scaffold and others that send weights take any records"
        )
    number = (images_per_class, task.classes * images_per_class)
    return {
        f"{field}.images": TensorSpec((number, *task.shape)),
        f"{field}.labels": TensorSpec((number,), torch.int64, 0, task.classes - 1),
    }


def union(sets: Mapping[int, SyntheticSet]) -> SyntheticSet:
    """All images together, in the order of the clients."""
    ordered = [sets[client] for client in sorted(sets)]
    return SyntheticSet(
        torch.cat([s.images for s in ordered]), torch.cat([s.labels for s in ordered])
    )


def save_sets(path: Path, sets: Mapping[int, SyntheticSet], about: About) -> None:
    """Write all clients' sets of one round to one file. Equal sets give equal bytes."""
    together = union(sets)
    clients = [torch.full((len(sets[c]),), c, dtype=torch.int32) for c in sorted(sets)]
    tensors = {"images": together.images, "labels": together.labels, "client": torch.cat(clients)}
    write_atomically(path, tree.pack(tensors, msgspec.to_builtins(about)))


def set_file(path: Path) -> Path:
    """The file that is meant: ``path`` itself, or the last round's set of a run folder."""
    if not path.is_dir():
        return path
    rounds = sorted((path / "synthetic").glob("round-*.safetensors"))
    if not rounds:
        raise RequestError(f"{path}: no synthetic sets; its method makes none, or no round ended")
    return rounds[-1]


def load_set(path: str | Path) -> StoredSet:
    """The sets in a file of ``save_sets``, or of a run folder's last round.

    Nothing in the file is executed, and its tensors are mapped into memory, not read: a file
    cannot ask for more memory than it has bytes.
    """
    file = set_file(Path(path))
    try:
        tensors, header = read_safetensors(file)
        about = msgspec.convert(header, About)
        stored = StoredSet(tensors["images"], tensors["labels"], tensors["client"], about)
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror or error}") from error
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise RequestError(f"{path}: not a file of synthetic sets: {error}") from error
    complaint = _complaint(stored)
    if complaint:
        raise RequestError(f"{path}: not a file of synthetic sets: {complaint}")
    return stored


def _complaint(stored: StoredSet) -> str | None:
    """What is wrong with the tensors of a file, if anything."""
    about = stored.about
    rows, classes = len(stored.clients), len(about.class_names)
    if not rows:
        return "it holds no images"
    labels = TensorSpec((rows,), torch.int64, 0, classes - 1)
    if stored.labels.is_floating_point():
        labels = TensorSpec((rows, classes))
    specs = {
        "images": (stored.images, TensorSpec((rows, *about.shape))),
        "labels": (stored.labels, labels),
        "client": (stored.clients, TensorSpec((rows,), torch.int32, low=SERVER)),
    }
    for name, (tensor, spec) in specs.items():
        complaint = spec.complaint(tensor)
        if complaint:
            return f"'{name}' {complaint}"
    channels = 1 if len(about.shape) == 2 else about.shape[0] if about.shape else 0
    if len(about.mean) != len(about.std) or len(about.mean) not in (0, 1, channels):
        return "the scaling does not fit the images"
    return None
