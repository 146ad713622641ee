"""The private door: what a method sees of a client's records when privacy is on.

``privacy/mechanism.py`` implements it and proves what it promises. A method says by a
``PrivateForm`` how it uses the door.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from fedstill.records import Records
from fedstill.types import Params


class RecordVectors(Protocol):
    """One vector per record, in any form that supports these functions."""

    def squared_norms(self) -> Tensor:
        """[records]: each norm is over all parts of the vector together."""
        ...

    def weighted(self, shares: Tensor) -> Params:
        """Weighted sums of the vectors; ``shares`` [..., records] may give several sums at once."""
        ...

    def dense(self) -> Params:
        """The vectors themselves, as tensors [records, ...]."""
        ...


class PerRecord(Protocol):
    """Maps records to vectors: tensors [records, ...], or a form that needs less memory."""

    def __call__(self, records: Records, /) -> Params | RecordVectors: ...


@runtime_checkable
class SizedPerRecord(PerRecord, Protocol):
    """The same, for large vectors: the door then processes fewer records at a time."""

    @property
    def floats(self) -> int:
        """Numbers in memory per record."""
        ...


@dataclass(frozen=True)
class ClassSums:
    """A release by class: noisy sums [classes, ...], and the number of records in each.

    The counts are noisy as well, or public numbers: they may be far off, and negative.
    """

    sums: Params
    counts: Tensor


class Private(Protocol):
    """The private door: the mechanism through which alone records are read when privacy is on.

    Each call of a ``noisy_`` function is one access: a newly drawn Poisson sample of the client's
    records, one vector per record, clipped to norm C and summed, with Gaussian noise added
    (``privacy/mechanism.py`` has the proof). ``per_record`` is called with a few records at a time
    and must give each a vector that depends on that record and public values alone, e.g.
    ``steps.per_record.weight_gradients(task, params)``. A result may be used without limit.
    """

    @property
    def rate(self) -> float:
        """q: the probability that a record is in a sample."""
        ...

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise, in units of the clip: public."""
        ...

    @property
    def clip(self) -> float:
        """C: the norm that each record's vector is clipped to."""
        ...

    @property
    def class_clip(self) -> float:
        """The part of C that is left for the vector itself in a release by class."""
        ...

    @property
    def size(self) -> int:
        """The client's public number of records: never the true one."""
        ...

    @property
    def classes(self) -> Tensor:
        """Labels of the classes that the client is publicly known to hold, ascending."""
        ...

    @property
    def expected_batch(self) -> float:
        """The expected size of a sample if ``size`` were the true number."""
        ...

    def noisy_sum(self, per_record: PerRecord, *, clip: float | None = None) -> Params:
        """Sum of the clipped per-record vectors of a random batch, plus noise."""
        ...

    def noisy_mean(self, per_record: PerRecord, *, clip: float | None = None) -> Params:
        """``noisy_sum`` divided by ``expected_batch``, which is public."""
        ...

    def noisy_class_sums(self, per_record: PerRecord) -> ClassSums:
        """One ``noisy_sum`` per class of ``classes``, at the cost of one access."""
        ...


@dataclass(frozen=True)
class Leak:
    """A setting that would leak records in a private run."""

    setting: str  # its name in the method
    value: object
    why: str
    remedy: str


@dataclass(frozen=True)
class PrivateForm:
    """What a method declares about its private form.

    ``accesses``: the largest number of accesses per client and round. ``leaks``: settings of the
    method that leak records; the run is then refused.
    """

    accesses: int
    leaks: tuple[Leak, ...] = ()
