"""The private door: the mechanism through which alone records are read when privacy is on.

    1  B <- every record of the client, independently, with probability q
    2  v_i <- per_record(x_i, y_i), clipped to norm C    for i in B
    3  release  sum_B v_i + N(0, (sigma C)^2 I)

Neighbouring data sets differ by one record. Given the draws of the others, the sum of line 3 then
differs by one v_i or not at all, so by at most C: line 3 is the Gaussian mechanism with noise
multiplier sigma on a Poisson sample at rate q, which is what the ledger counts and the accountant
composes. Whatever is computed from a release and public values is post-processing and costs
nothing.

By class: one sum_B per class. A record has one label, so it enters one of these sums and their
concatenation still changes by at most C: one access. The number of records of a class in B is
private too. Either it is part of the same release (``count`` below: a constant appended to every
v_i, the whole clipped to norm C), or a public number is used.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedstill.privacy.ledger import Ledger
from fedstill.privacy.randomness import Randomness
from fedstill.private import ClassSums, PerRecord, RecordVectors, SizedPerRecord
from fedstill.records import Records, Split
from fedstill.types import Params

# The share s of the clip that a released count takes: its noise is sigma / s records, and
# sqrt(1 - s^2), 95% of the clip, is left for the record's vector.
COUNT_SHARE = 0.3
_MOST_FLOATS = 2**24  # of per-record vectors in memory at once: 64 MB


@dataclass(frozen=True)
class DoorTerms:
    """The public numbers of a door: sampling rate, noise, clip, and the client's public values."""

    rate: float
    sigma: float
    clip: float
    size: int  # how many records the client is publicly known to have
    classes: Tensor  # labels of the classes it is publicly known to hold, ascending
    counts_released: bool = True


@dataclass
class PrivateRecords:
    """The door to one client's records. See ``fedstill.private.Private`` for how to use it."""

    _records: Records
    _ledger: Ledger
    _randomness: Randomness
    _terms: DoorTerms
    round: int
    chunk: int = 64
    _accesses: int = field(default=0, init=False)

    @property
    def rate(self) -> float:
        return self._terms.rate

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise, in units of the clip."""
        return self._terms.sigma

    @property
    def clip(self) -> float:
        return self._terms.clip

    @property
    def size(self) -> int:
        return self._terms.size

    @property
    def classes(self) -> Tensor:
        return self._terms.classes

    @property
    def counts_released(self) -> bool:
        """Whether a release by class includes noisy counts."""
        return self._terms.counts_released

    @property
    def expected_batch(self) -> float:
        return self.rate * self.size

    @property
    def class_clip(self) -> float:
        share = COUNT_SHARE if self.counts_released else 0.0
        return self.clip * math.sqrt(1 - share**2)

    def noisy_sum(self, per_record: PerRecord, *, clip: float | None = None) -> Params:
        bound = self.clip if clip is None else clip
        return self._release(per_record, bound, lambda part: self._sum(per_record, part, bound))

    def noisy_mean(self, per_record: PerRecord, *, clip: float | None = None) -> Params:
        total = self.noisy_sum(per_record, clip=clip)
        return {k: v / self.expected_batch for k, v in total.items()}

    def noisy_class_sums(self, per_record: PerRecord) -> ClassSums:
        sums = self._release(per_record, self.clip, lambda part: self._by_class(per_record, part))
        if self.counts_released:
            return ClassSums(sums, sums.pop(_COUNT) / (COUNT_SHARE * self.clip))
        slots = len(self.classes)
        public = torch.full((slots,), self.expected_batch / slots, device=self._records.device)
        return ClassSums(sums, public)

    def _release(
        self, per_record: PerRecord, clip: float, add_up: Callable[[Records], Params]
    ) -> Params:
        access = self._accesses
        self._accesses += 1
        self._ledger.open(self.round, clip)  # counted before any record is read
        total: Params = {}
        for part in self._sample(access, per_record):
            for name, value in add_up(part).items():
                # In double precision: a sum of many records, whose last bits get noise too.
                total[name] = total[name] + value if name in total else value.double()
        floats = sum(v.numel() for v in total.values())
        noise = self._randomness.normal(access, floats) * (self.sigma * clip)
        released: Params = {}
        for (name, value), part in zip(
            total.items(), noise.split([v.numel() for v in total.values()]), strict=True
        ):
            released[name] = (value + part.view(value.shape).to(value.device)).float()
        return released

    def _sample(self, access: int, per_record: PerRecord) -> Iterator[Records]:
        """Line 1, in parts whose vectors fit into memory."""
        records = self._records
        drawn = self._randomness.uniform(access, len(records)) < self.rate
        positions = drawn.nonzero().flatten()
        if not len(positions):
            yield self._blank_record()
            return
        floats = per_record.floats if isinstance(per_record, SizedPerRecord) else 1
        most = _MOST_FLOATS // max(1, floats)
        for part in positions.split(max(1, min(self.chunk, most))):
            yield Records(records.split, records.index[part], records.scaling, records.device)

    def _blank_record(self) -> Records:
        """A blank record that gives an empty sample its shapes; it is summed with factor 0."""
        split, records = self._records.split, self._records
        blank = Split(torch.zeros_like(split.inputs[:1]), torch.zeros_like(split.labels[:1]))
        if not len(blank):
            raise ValueError("a split without a single record has no shape")
        return _BlankRecord(
            blank, torch.zeros(1, dtype=torch.int64), records.scaling, records.device
        )

    def _vectors(self, per_record: PerRecord, part: Records) -> tuple[Records, RecordVectors]:
        """The vectors of these records. One that is not finite is left out with its record:
        a record may change the sum by at most C, and NaN would exceed that."""
        vectors = _checked(per_record(part), len(part))
        good = torch.isfinite(vectors.squared_norms()).cpu()
        if bool(good.all()):
            return part, vectors
        if isinstance(part, _BlankRecord):
            raise ValueError("per_record gives a blank record a vector that is not finite")
        rest = Records(part.split, part.index[good], part.scaling, part.device)
        return self._vectors(per_record, rest if len(rest) else self._blank_record())

    def _sum(self, per_record: PerRecord, part: Records, clip: float) -> Params:
        """Line 2 and the sum of line 3, for part of the sample."""
        part, vectors = self._vectors(per_record, part)
        return vectors.weighted(clip_factors(vectors, clip) * _present(part))

    def _by_class(self, per_record: PerRecord, part: Records) -> Params:
        """The same with one sum per class, and the constant that counts."""
        part, vectors = self._vectors(per_record, part)
        factors = clip_factors(vectors, self.class_clip)
        labels = part.labels.to(factors.device)
        # [classes, records]: 1 where a record is summed. One of an undeclared class is not.
        member = (self.classes.to(factors.device)[:, None] == labels).to(factors) * _present(part)
        sums = vectors.weighted(member * factors)
        if self.counts_released:
            sums[_COUNT] = member.sum(1) * (COUNT_SHARE * self.clip)
        return sums


_COUNT = "records of the class"


class _BlankRecord(Records):
    """The blank record of an empty sample."""


def _present(part: Records) -> float:
    return 0.0 if isinstance(part, _BlankRecord) else 1.0


def clip_factors(vectors: RecordVectors, clip: float) -> Tensor:
    """min(1, C / norm) per record; norms are over all tensors together."""
    return clip / vectors.squared_norms().sqrt().clamp(min=clip)


@dataclass(frozen=True)
class Stacked:
    """Vectors in memory, [records, ...] for each part."""

    parts: Params

    def squared_norms(self) -> Tensor:
        return torch.stack([v.flatten(1).square().sum(1) for v in self.parts.values()]).sum(0)

    def weighted(self, shares: Tensor) -> Params:
        return {
            name: (shares.to(v.dtype) @ v.flatten(1)).view(*shares.shape[:-1], *v.shape[1:])
            for name, v in self.parts.items()
        }

    def dense(self) -> Params:
        return self.parts


def _checked(vectors: Params | RecordVectors, records: int) -> RecordVectors:
    if not isinstance(vectors, dict):
        return vectors
    wrong = [k for k, v in vectors.items() if v.dim() == 0 or len(v) != records]
    if wrong or not vectors:
        raise ValueError(
            f"per_record must give one vector per record: '{''.join(wrong[:1])}' is not"
        )
    return Stacked(vectors)
