"""One vector out of many: the mean, and robust rules that tolerate a minority of wrong vectors.

- ``mean``: the sum with the given weights. A single vector can move it anywhere.
- ``sum``: every vector with weight 1. Its length grows with the number of vectors; only DistDD,
  whose paper prints it, offers it.
- ``median``: coordinate-wise (Yin et al., ICML 2018); the mean of the middle two if their number is
  even. While more than half of the vectors are correct, every coordinate stays in their range.
- ``trimmed-mean``: per coordinate, the share ``trim`` of the values (rounded up) is removed at each
  end and the rest is averaged. It tolerates as many wrong vectors as are removed at one end.
- ``krum`` (Blanchard et al., NeurIPS 2017): the vector with the smallest sum of squared distances
  to its n - f - 2 nearest, where f (``byzantine``) is the number of wrong vectors to tolerate.
- ``multi-krum``: the mean of the n - f vectors that Krum ranks first.

Only the mean uses weights: n_k is reported by the client itself, and the other rules are for
clients that may be malicious. All of them are pure and do not depend on the vectors' order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from msgspec import Meta
from torch import Tensor

from fedstill.errors import RunError
from fedstill.steps.arithmetic import weighted_sum
from fedstill.types import Params, RepliesNeeded

MeanRule = Literal["mean", "median", "trimmed-mean", "krum", "multi-krum"]
Rule = Literal["sum"] | MeanRule


@dataclass(frozen=True, kw_only=True)
class Aggregating:
    """Settings of a server that aggregates vectors, and the aggregation itself."""

    aggregate: Rule = "mean"
    trim: Annotated[float, Meta(ge=0, lt=0.5)] = 0.1  # removed at each end by trimmed-mean
    byzantine: Annotated[int, Meta(ge=0)] = 1  # f: wrong vectors that krum and multi-krum tolerate

    instead_of_defence: ClassVar[str] = "set method.aggregate = 'median' instead"

    @property
    def least_vectors(self) -> int:
        """The fewest vectors that the rule accepts: 2 f + 3 for Krum's guarantee."""
        return 2 * self.byzantine + 3 if self.aggregate in ("krum", "multi-krum") else 1

    @property
    def replies_needed(self) -> RepliesNeeded:
        """As many replies as the rule needs vectors."""
        return RepliesNeeded(
            self.least_vectors,
            f"method.aggregate = '{self.aggregate}' with byzantine = {self.byzantine}",
            "lower method.byzantine, or choose another rule",
        )

    def aggregated(self, vectors: Sequence[Params], weights: Sequence[float]) -> Params:
        """The aggregate of ``vectors``; only the mean uses ``weights``."""
        if len(vectors) < self.least_vectors:
            raise RunError(
                f"method.aggregate = '{self.aggregate}' with byzantine = {self.byzantine} needs "
                f"{self.least_vectors} vectors, there are {len(vectors)}"
            )
        match self.aggregate:
            case "mean":
                return weighted_sum(vectors, weights)
            case "sum":
                return weighted_sum(vectors, [1.0] * len(vectors))
            case "median":
                return median(vectors)
            case "trimmed-mean":
                return trimmed_mean(vectors, self.trim)
            case "krum":
                return krum(vectors, self.byzantine)
            case "multi-krum":
                return multi_krum(vectors, self.byzantine)


@dataclass(frozen=True, kw_only=True)
class Averaging(Aggregating):
    """The same for updates of a model, which must not be summed."""

    aggregate: MeanRule = "mean"


def median(vectors: Sequence[Params]) -> Params:
    """Coordinate-wise median; the mean of the middle two if their number is even."""
    return _trimmed(vectors, (len(vectors) - 1) // 2)


def trimmed_mean(vectors: Sequence[Params], trim: float) -> Params:
    """Coordinate-wise mean without the share ``trim`` of the values at each end, rounded up.

    Rounded up, because the share of a few clients would otherwise be zero; at least one value
    (two if their number is even) is left.
    """
    requested = math.ceil(trim * len(vectors) - 1e-9)
    return _trimmed(vectors, min(requested, (len(vectors) - 1) // 2))


def krum(vectors: Sequence[Params], byzantine: int) -> Params:
    """The vector with the smallest Krum score."""
    return vectors[_ranked(vectors, byzantine)[0]]


def multi_krum(vectors: Sequence[Params], byzantine: int) -> Params:
    """The mean of all but the ``byzantine`` vectors that Krum ranks last."""
    chosen = _ranked(vectors, byzantine)[: len(vectors) - byzantine]
    return weighted_sum([vectors[i] for i in chosen], [1 / len(chosen)] * len(chosen))


def _trimmed(vectors: Sequence[Params], trimmed: int) -> Params:
    """Mean of the sorted values without the first and the last ``trimmed``."""
    return {
        name: torch.stack([v[name] for v in vectors])
        .sort(0)
        .values[trimmed : len(vectors) - trimmed]
        .mean(0)
        for name in vectors[0]
    }


def _ranked(vectors: Sequence[Params], byzantine: int) -> list[int]:
    """Positions by Krum's score, best first."""
    flat = [torch.cat([v.flatten() for v in vector.values()]).double() for vector in vectors]
    scores = _krum_scores(flat, max(1, len(flat) - byzantine - 2))
    # Equal scores are common among few vectors, e.g. two that are each other's nearest. The values
    # then decide, not the order; they are compared only for ties.
    tied = {score for score in scores if scores.count(score) > 1}
    keys = [(s, tuple(f.tolist()) if s in tied else ()) for s, f in zip(scores, flat, strict=True)]
    return sorted(range(len(flat)), key=keys.__getitem__)


def _krum_scores(flat: Sequence[Tensor], nearest: int) -> list[float]:
    """Sum of the squared distances of each vector to its ``nearest`` nearest others."""
    apart = [[0.0] * len(flat) for _ in flat]
    for i, a in enumerate(flat):
        for j, b in enumerate(flat[:i]):
            apart[i][j] = apart[j][i] = float((a - b).square().sum())
    return [math.fsum(sorted(row[:i] + row[i + 1 :])[:nearest]) for i, row in enumerate(apart)]
