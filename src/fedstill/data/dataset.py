"""Records in memory: one contiguous tensor for everyone, clients as indices into it."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """All records of one split: ``inputs`` [N, ...] (uint8 images or tokens), ``labels`` [N].

    The records of a text have a label at every position, [N, positions]; -100 asks for nothing.
    ``groups`` names the natural owner of every record (a writer, a speaker, a domain) as an
    index into ``Dataset.group_names``; it is ``None`` where the data have no such column.
    """

    inputs: Tensor
    labels: Tensor
    groups: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Scaling:
    """Fixed public constants that turn raw inputs into network inputs.

    Images come as bytes: x -> (x / 255 - mean) / std, a channel at a time. The constants are
    never computed from the clients' records: that would leak them (docs/privacy.md).
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, inputs: Tensor) -> Tensor:
        if not self.mean:  # tokens and other inputs that are used as they are
            return inputs
        scale = 1.0 / 255.0 if inputs.dtype == torch.uint8 else 1.0
        shape = (1, -1, *([1] * (inputs.dim() - 2)))
        std = torch.tensor(self.std, device=inputs.device).view(shape)
        mean = torch.tensor(self.mean, device=inputs.device).view(shape)
        # One multiply and one add: the constants are folded first.
        return torch.addcmul(-mean / std, inputs.float(), scale / std)

    def undo(self, x: Tensor) -> Tensor:
        """Back to the range 0..1 (not clipped): what pictures are drawn from."""
        if not self.mean:
            return x
        shape = (1, -1, *([1] * (x.dim() - 2)))
        std = torch.tensor(self.std, device=x.device).view(shape)
        mean = torch.tensor(self.mean, device=x.device).view(shape)
        return x * std + mean


@dataclass(frozen=True)
class Dataset:
    """A data set with its official split, ready to train on."""

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    scaling: Scaling
    fingerprint: str  # SHA-256 of the decoded records: the same data give the same runs
    group_names: tuple[str, ...] = field(default=())

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, e.g. (1, 28, 28)."""
        return tuple(self.train.inputs.shape[1:])

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def tokens(self) -> bool:
        """Whether the inputs are numbers of tokens: text, not pixels or measurements."""
        return not self.scaling.mean and not self.train.inputs.is_floating_point()


@dataclass(frozen=True)
class Records:
    """A client's records: positions in a split that all clients share. Nothing is copied."""

    split: Split
    index: Tensor  # int64 positions in the split
    scaling: Scaling
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __len__(self) -> int:
        return len(self.index)

    @property
    def labels(self) -> Tensor:
        """Labels of all records here, on the CPU."""
        return self.split.labels[self.index]

    def take(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (scaled) and labels of the records at these positions of ``index``."""
        rows = self.index[positions]
        inputs = self.split.inputs[rows].to(self.device)
        return self.scaling(inputs), self.split.labels[rows].to(self.device)

    def all(self) -> tuple[Tensor, Tensor]:
        """Every record at once."""
        return self.take(torch.arange(len(self)))
