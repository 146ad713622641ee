"""Records as tensors, real and synthetic. Clients are indices into one tensor that all share."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedstill.scaling import Scaling

SERVER = -1  # the client number of a set that the server distilled


@dataclass(frozen=True)
class Split:
    """All records of one split: ``inputs`` [N, ...] (uint8 images or tokens), ``labels`` [N].

    The records of a text have one label per position, [N, positions]; -100 is ignored by losses.
    ``groups`` is the natural owner of each record (a writer, a speaker, a domain) as an index into
    ``Dataset.group_names``; it is ``None`` if the data have no such column.
    """

    inputs: Tensor
    labels: Tensor
    groups: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Records:
    """A client's records: positions in a split that all clients share. Nothing is copied."""

    split: Split
    index: Tensor  # int64 positions in the split
    scaling: Scaling
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __len__(self) -> int:
        return self.index.numel()

    @property
    def labels(self) -> Tensor:
        """Labels of all these records, on the CPU."""
        return self.split.labels[self.index]

    def take(self, positions: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Inputs (scaled) and labels of the records at these positions of ``index``."""
        rows = self.index[positions]
        inputs = copied(self.split.inputs[rows], self.device)
        return self.scaling(inputs), copied(self.split.labels[rows], self.device)

    def all(self) -> tuple[Tensor, Tensor]:
        """Inputs (scaled) and labels of all records."""
        return self.take(slice(None))


def copied(batch: Tensor, device: torch.device) -> Tensor:
    """A batch on the device. From pinned memory the copy need not wait for what CUDA computes."""
    if device.type == "cuda" and batch.device.type == "cpu":
        return batch.pin_memory().to(device, non_blocking=True)
    return batch.to(device)


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

    @property
    def classes(self) -> Tensor:
        """The class of each image: the most probable one if labels are distributions."""
        return self.labels.argmax(1) if self.labels.is_floating_point() else self.labels


def union(sets: Mapping[int, SyntheticSet]) -> SyntheticSet:
    """All images together, in the order of the clients."""
    ordered = [sets[client] for client in sorted(sets)]
    return SyntheticSet(
        torch.cat([s.images for s in ordered]), torch.cat([s.labels for s in ordered])
    )
