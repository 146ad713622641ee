"""Canaries at the door: worst-case records for the mechanism, and the attacker who looks for them.

A canary is a record whose vector is chosen by the attacker: in every access it points along a
coordinate of the release that it shares with no other canary, and it is ten times as long as the
clip, so that a mechanism that does not clip is noticed. The door's own code does all the rest:
sampling, clipping, summing, noise. The method's per-record function decides the shapes only.

Given the claim, the coordinate of a canary that is among the records is clip + noise where it was
sampled, and noise otherwise: the attacker adds up the exact log-likelihood ratios of all accesses.
If a release has fewer coordinates than there are canaries, they take turns. In a release by class a
canary has a class, and the class's noisy count is evidence about all canaries of that class.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedstill.privacy.mechanism import COUNT_SHARE, DoorTerms, PrivateRecords
from fedstill.private import ClassSums, PerRecord, RecordVectors
from fedstill.records import Records, Split
from fedstill.rng import Rng
from fedstill.types import Params, Task

_TOO_LONG = 10.0  # a canary's vector, in units of the clip
_SIMULATED = 50_000  # scores of canaries that are out, to fix thresholds


@dataclass(frozen=True)
class Canaries:
    """All canaries, of which those that the coins chose are put among the records."""

    records: Records
    included: Tensor  # bool

    @property
    def chosen(self) -> Records:
        """The canaries among the records."""
        every = self.records
        return Records(every.split, every.index[self.included], every.scaling, every.device)


def make_canaries(number: int, blank: Split, task: Task, classes: Tensor, rng: Rng) -> Canaries:
    """Canaries of the shape of a blank record, of each class in turn; images are noise."""
    shape, draw = (number, *blank.inputs.shape[1:]), rng.at("canaries").torch()
    if blank.inputs.dtype == torch.uint8:
        inputs = torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8)
    else:
        inputs = blank.inputs.new_zeros(shape)
    labels = blank.labels.new_zeros((number, *blank.labels.shape[1:]))
    if labels.dim() == 1:
        labels = classes[torch.arange(number) % len(classes)].to(labels)
    included = torch.rand(number, generator=rng.at("coins").torch()) < 0.5
    records = Records(Split(inputs, labels), torch.arange(number), task.scaling, task.device)
    return Canaries(records, included)


@dataclass(frozen=True)
class Directions:
    """Vectors of length ``length`` along one coordinate each (-1: the zero vector)."""

    shapes: dict[str, tuple[int, ...]]
    coordinates: Tensor  # of the concatenation of all shapes
    length: float

    def squared_norms(self) -> Tensor:
        return (self.coordinates >= 0).double() * self.length**2

    def weighted(self, shares: Tensor) -> Params:
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        there = self.coordinates >= 0
        total = shares.new_zeros(*shares.shape[:-1], sum(sizes))
        values = shares[..., there] * self.length
        total.index_add_(-1, self.coordinates[there], values)
        parts = total.split(sizes, dim=-1)
        return {
            name: part.reshape(*shares.shape[:-1], *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def dense(self) -> Params:
        return self.weighted(torch.eye(len(self.coordinates), dtype=torch.float64))


@dataclass
class Attacker:
    """Scores every canary by the likelihood of what was released, if the claim is true."""

    terms: DoorTerms  # of the claim
    number: int  # canaries
    scores: Tensor = field(init=False)
    _counts: Tensor = field(init=False)  # sum of the noisy counts of each class
    _counted: int = field(default=0, init=False)  # accesses with counts
    _signals: list[tuple[float, float]] = field(default_factory=list, init=False)
    room: int = field(default=0, init=False)  # the most canaries that had a coordinate at once

    def __post_init__(self) -> None:
        self.scores = torch.zeros(self.number, dtype=torch.float64)
        self._counts = torch.zeros(len(self.terms.classes), dtype=torch.float64)

    def see(self, values: Tensor, there: Tensor, signal: float, noise: float) -> None:
        """The canaries' coordinates in one release, where they have one."""
        ratio = signal / noise
        heard = _likelihood(values[there].double() / noise, ratio, self.terms.rate)
        self.scores[there] += heard
        self._signals.append((ratio, float(there.double().mean())))
        self.room = max(self.room, int(there.sum()))

    @property
    def coverage(self) -> float:
        """The mean share of the canaries that had a coordinate in a release."""
        return sum(share for _, share in self._signals) / max(1, len(self._signals))

    def see_counts(self, counts: Tensor) -> None:
        """The noisy counts of one release by class."""
        self._counts += counts.double()
        self._counted += 1

    def threshold(self, false_positives: float, rng: Rng) -> float:
        """The score that this share of the canaries that are out would exceed, if the claim is
        true. It is simulated from public numbers alone, so it is fixed before any release."""
        draw = rng.at("thresholds").torch()
        total = torch.zeros(_SIMULATED, dtype=torch.float64)
        for ratio, share in self._signals:
            noise = torch.randn(_SIMULATED, generator=draw, dtype=torch.float64)
            heard = _likelihood(noise, ratio, self.terms.rate)
            total += heard * (torch.rand(_SIMULATED, generator=draw) < share)
        return float(total.quantile(1 - false_positives))

    def with_counts(self) -> Tensor:
        """The scores with what the counts add: a count that is higher than the scores of its class
        explain speaks for each of its canaries, in proportion to what is uncertain about the
        others. Scores of one class then depend on each other."""
        if not self._counted:
            return self.scores
        slots = torch.arange(self.number) % len(self._counts)
        likely = self.scores.sigmoid()
        expected = torch.zeros_like(self._counts).index_add_(0, slots, likely)
        open_ = torch.zeros_like(self._counts).index_add_(0, slots, likely * (1 - likely))
        rate, accesses = self.terms.rate, self._counted
        each = accesses * rate  # what one canary adds to the sum of the counts
        noise = accesses * ((self.terms.sigma / COUNT_SHARE) ** 2 + rate * (1 - rate) * expected)
        others = open_[slots] - likely * (1 - likely)
        surplus = self._counts[slots] - each * (expected[slots] - likely + 0.5)
        return self.scores + each * surplus / (noise[slots] + each**2 * others)


def _likelihood(values: Tensor, ratio: float, rate: float) -> Tensor:
    """log of the likelihood ratio "in" to "out"; values in units of the noise's deviation."""
    sampled = values * ratio - ratio**2 / 2
    if rate == 1:
        return sampled
    absent = torch.full_like(sampled, math.log1p(-rate))
    return torch.logaddexp(absent, sampled + math.log(rate))


class WatchedDoor:
    """A door that gives canaries their vectors, and shows its releases to the attacker.

    Whatever is not defined here is the door's own.
    """

    def __init__(
        self, door: PrivateRecords, canaries: Canaries, attacker: Attacker, blank: Records
    ) -> None:
        self._door, self._canaries, self._attacker, self._blank = door, canaries, attacker, blank
        self._turn = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._door, name)

    def noisy_sum(self, per_record: PerRecord, *, clip: float | None = None) -> Params:
        vectors, bound = self._vectors(per_record, clip)
        release = self._door.noisy_sum(vectors, clip=clip)
        self._show(vectors, _flat(release, 0), bound)
        return release

    def noisy_mean(self, per_record: PerRecord, *, clip: float | None = None) -> Params:
        vectors, bound = self._vectors(per_record, clip)
        release = self._door.noisy_mean(vectors, clip=clip)
        self._show(vectors, _flat(release, 0) * self._door.expected_batch, bound)
        return release

    def noisy_class_sums(self, per_record: PerRecord) -> ClassSums:
        vectors, _ = self._vectors(per_record, None, by_class=True)
        release = self._door.noisy_class_sums(vectors)
        rows = _flat(release.sums, 1)
        slots = torch.arange(self._attacker.number) % len(rows)
        terms = self._attacker.terms
        share = COUNT_SHARE if terms.counts_released else 0.0
        self._attacker.see(
            rows[slots, vectors.coordinates.clamp(min=0)],
            vectors.coordinates >= 0,
            terms.clip * math.sqrt(1 - share**2),
            terms.sigma * terms.clip,
        )
        if terms.counts_released:
            self._attacker.see_counts(release.counts.cpu())
        return release

    def _show(self, vectors: "_CanaryVectors", values: Tensor, bound: float) -> None:
        self._attacker.see(
            values[vectors.coordinates.clamp(min=0)],
            vectors.coordinates >= 0,
            bound,
            self._attacker.terms.sigma * bound,
        )

    def _vectors(
        self, per_record: PerRecord, clip: float | None, by_class: bool = False
    ) -> tuple["_CanaryVectors", float]:
        bound = self._attacker.terms.clip if clip is None else clip
        shapes = shapes_of(per_record, self._blank)
        size = sum(math.prod(shape) for shape in shapes.values())
        number, slots = self._attacker.number, len(self._attacker.terms.classes)
        rank = torch.arange(number) // (slots if by_class else 1)
        ranks = int(rank.max()) + 1
        shift = self._turn * size if size < ranks else 0
        place = (rank - shift) % ranks  # they take turns where coordinates are too few
        coordinates = torch.where(place < size, place, -1)
        self._turn += 1
        split = self._canaries.records.split
        return _CanaryVectors(per_record, split, shapes, coordinates, _TOO_LONG * bound), bound


@dataclass(frozen=True)
class _CanaryVectors:
    """The per-record function of one access, with the canaries' vectors in place of its own."""

    real: PerRecord
    split: Split  # of the canaries
    shapes: dict[str, tuple[int, ...]]
    coordinates: Tensor  # of every canary
    length: float

    def __call__(self, records: Records) -> Params | RecordVectors:
        if records.split is not self.split:  # the blank record of a sample without records
            return self.real(records)
        places = self.coordinates[records.index].to(records.device)
        return Directions(self.shapes, places, self.length)


def shapes_of(per_record: PerRecord, blank: Records) -> dict[str, tuple[int, ...]]:
    """The shapes of a record's vector, from a blank record."""
    vectors = per_record(blank)
    dense = vectors if isinstance(vectors, dict) else vectors.dense()
    return {name: tuple(value.shape[1:]) for name, value in dense.items()}


def blank_record(blank: Split, task: Task) -> Records:
    """One blank record."""
    return Records(blank, torch.zeros(1, dtype=torch.int64), task.scaling, task.device)


def _flat(release: Params, leading: int) -> Tensor:
    """All tensors of a release as one, behind ``leading`` dimensions."""
    return torch.cat([v.flatten(leading) for v in release.values()], -1).cpu()
