"""A data set in memory: both splits, its classes and its scaling."""

from dataclasses import dataclass, field

from fedstill.data.column import Column
from fedstill.records import Split
from fedstill.scaling import Scaling


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
    columns: tuple[Column, ...] = ()  # of a table: what its features are
    owned_by: str = ""  # what makes a client of partition natural: "file", "value of 'hospital'"

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

    @property
    def table(self) -> bool:
        """Whether the inputs are rows of features: numbers without a place beside each other."""
        return self.train.inputs.is_floating_point() and len(self.shape) == 1
