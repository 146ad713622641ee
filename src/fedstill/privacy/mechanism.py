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

No record can make a release fail: a v_i that is not finite, is longer than 1e18, or cannot be
computed, counts as zero, and a sample without a single record is zeros of the public shapes, with
the same noise. Otherwise whether a release exists would tell, without noise, whether a record does.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedstill.privacy.ledger import Counter
from fedstill.privacy.randomness import Randomness
from fedstill.private import ClassSums, PerRecord, RecordVectors, SizedPerRecord
from fedstill.records import Records, Split
from fedstill.steps.arithmetic import row_squares
from fedstill.types import Params

# The share s of the clip that a released count takes: its noise is sigma / s records, and
# sqrt(1 - s^2), 95% of the clip, is left for the record's vector.
COUNT_SHARE = 0.3
_LONGEST = 1e18  # norm of a record's vector; a longer one counts as zero
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
    _ledger: Counter
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

        def add_up(_part: Records, vectors: RecordVectors) -> Params:
            return vectors.weighted(clip_factors(vectors, bound))

        return self._release(per_record, bound, add_up)

    def noisy_mean(self, per_record: PerRecord, *, clip: float | None = None) -> Params:
        total = self.noisy_sum(per_record, clip=clip)
        return {k: v / self.expected_batch for k, v in total.items()}

    def noisy_class_sums(self, per_record: PerRecord) -> ClassSums:
        sums = self._release(per_record, self.clip, self._by_class)
        if self.counts_released:
            return ClassSums(sums, sums.pop(_COUNT) / (COUNT_SHARE * self.clip))
        slots = len(self.classes)
        public = torch.full((slots,), self.expected_batch / slots, device=self._records.device)
        return ClassSums(sums, public)

    def _release(
        self,
        per_record: PerRecord,
        clip: float,
        add_up: Callable[[Records, RecordVectors], Params],
    ) -> Params:
        access = self._accesses
        self._accesses += 1
        self._ledger.open(self.round, clip)  # counted before any record is read
        total: Params = {}
        for part in self._sample(access, per_record):
            for vectors in self._vectors(per_record, part):
                for name, value in add_up(*vectors).items():
                    # In double precision: a sum of many records, whose last bits get noise too.
                    total[name] = total[name] + value if name in total else value.double()
        if not total:
            blank = self._blank_record()
            shapes = add_up(blank, _checked(per_record(blank), 1))
            total = {name: torch.zeros_like(v, dtype=torch.float64) for name, v in shapes.items()}
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
            return
        floats = per_record.floats if isinstance(per_record, SizedPerRecord) else 1
        most = _MOST_FLOATS // max(1, floats)
        for part in positions.split(max(1, min(self.chunk, most))):
            yield Records(records.split, records.index[part], records.scaling, records.device)

    def _blank_record(self) -> Records:
        """A blank record: what is computed from it has the public shapes, and is not summed."""
        split, records = self._records.split, self._records
        inputs, labels = (t.new_zeros(1, *t.shape[1:]) for t in (split.inputs, split.labels))
        first = torch.zeros(1, dtype=torch.int64)
        return Records(Split(inputs, labels), first, records.scaling, records.device)

    def _vectors(self, per_record: PerRecord, part: Records) -> list[tuple[Records, RecordVectors]]:
        """The vectors of these records, without those that count as zero: a record may change the
        sum by at most C, and NaN would exceed that."""
        try:
            computed = per_record(part)
        except Exception:
            per_record(self._blank_record())  # raises if the fault is not one of the records
            if len(part) == 1:
                return []
            alone = (_select(part, torch.tensor([i])) for i in range(len(part)))
            return [found for one in alone for found in self._vectors(per_record, one)]
        vectors = _checked(computed, len(part))
        # False for NaN, too. A longer vector's factor would be too small for single precision.
        good = (vectors.squared_norms() < _LONGEST**2).cpu()
        if bool(good.all()):
            return [(part, vectors)]
        rest = _select(part, good)
        return self._vectors(per_record, rest) if len(rest) else []

    def _by_class(self, part: Records, vectors: RecordVectors) -> Params:
        """One sum per class, and the constant that counts."""
        factors = clip_factors(vectors, self.class_clip)
        labels = part.labels.to(factors.device)
        # [classes, records]: 1 where a record is summed. One of an undeclared class is not.
        member = (self.classes.to(factors.device)[:, None] == labels).to(factors)
        sums = vectors.weighted(member * factors)
        if self.counts_released:
            sums[_COUNT] = member.sum(1) * (COUNT_SHARE * self.clip)
        return sums


_COUNT = "records of the class"


def _select(part: Records, which: Tensor) -> Records:
    return Records(part.split, part.index[which], part.scaling, part.device)


def clip_factors(vectors: RecordVectors, clip: float) -> Tensor:
    """min(1, C / norm) per record; norms are over all tensors together."""
    return clip / vectors.squared_norms().sqrt().clamp(min=clip)


@dataclass(frozen=True)
class Stacked:
    """Vectors in memory, [records, ...] for each part."""

    parts: Params

    def squared_norms(self) -> Tensor:
        return torch.stack([row_squares(v) for v in self.parts.values()]).sum(0)

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
