"""Lower bounds on epsilon from an attacker's guesses: two tests, each with its own assumptions.

``guesses`` (Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS
2023): under (epsilon, delta)-DP each of r guesses is right with probability at most
e^epsilon / (1 + e^epsilon), up to a term in delta. It assumes nothing but the independent coins,
and one run with m canaries can show at most about ln(m / 3).

``gaussian``: the mechanism is taken to be what it claims to be, Poisson-sampled Gaussian releases
with T accesses at rate q, but with an unknown noise multiplier s. Its trade-off curve at s bounds
what rates of true and false positives any attacker can have; with q = 1 it is the curve of
Gaussian differential privacy with mu = sqrt(T) / s (Dong, Roth and Su, 2022), otherwise it is
computed from privacy loss distributions (Nasr et al., "Tight Auditing of Differentially Private
Machine Learning", USENIX Security 2023, do the same). The bound is the epsilon of the largest s
that the observed rates allow. It is valid if canaries are scored independently of each other, which
holds for the claimed mechanism when their directions are orthogonal; and a bound above the claim
says that the mechanism is not the claimed one (noise, clip, rate or number of accesses). It can
show far more than ln(m / 3), because it may extrapolate along the curve.

Thresholds and numbers of guesses are fixed before any release is seen, and the confidence is shared
by all tests.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstill.privacy.accounting import delta_of, epsilon_of

# Of the canaries that are guessed: "in" for the highest scores, "out" for as many of the lowest.
SHARES = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01)
_EPSILONS = tuple(number / 20 for number in range(801))  # points of a trade-off curve: 0 to 40
_WIDEST = 64.0  # noise multipliers are searched from claimed / 64 to claimed * 64


@dataclass(frozen=True)
class Rates:
    """What one threshold gave: how many canaries above it were in, and how many were out."""

    inside: int  # canaries among the records
    outside: int
    true_positives: int
    false_positives: int

    @staticmethod
    def at(threshold: float, scores: Tensor, included: Tensor) -> "Rates":
        """The rates of guessing "in" above the threshold."""
        above, inside = scores > threshold, int(included.sum())
        hits, errors = int((above & included).sum()), int((above & ~included).sum())
        return Rates(inside, len(included) - inside, hits, errors)

    @property
    def perfect(self) -> "Rates":
        """The same canaries, all guessed right: what a mechanism without noise would give."""
        return Rates(self.inside, self.outside, self.inside, 0)

    @property
    def right(self) -> int:
        return self.true_positives + self.outside - self.false_positives

    def limits(self, level: float) -> tuple[float, float]:
        """The least true-positive and the largest false-positive rate (Clopper and Pearson).

        Both hold together with probability 1 - ``level``.
        """
        from scipy.stats import beta

        hits, errors = self.true_positives, self.false_positives
        least = float(beta.ppf(level / 2, hits, self.inside - hits + 1)) if hits else 0.0
        most = (
            float(beta.ppf(1 - level / 2, errors + 1, self.outside - errors))
            if errors < self.outside
            else 1.0
        )
        return least, most


@dataclass(frozen=True)
class Claim:
    """The claimed mechanism: ``accesses`` Gaussian releases at rate q with multiplier sigma."""

    accesses: int
    rate: float
    sigma: float
    delta: float

    def refuted(self, sigma: float, observed: Sequence[Rates], level: float) -> bool:
        """Whether noise of this multiplier cannot have given these rates; they share ``level``."""
        epsilons = torch.tensor(_EPSILONS, dtype=torch.float64)
        curve = delta_of(_EPSILONS, self.accesses, self.rate, sigma)
        deltas = torch.tensor(curve, dtype=torch.float64)
        for rates in observed:
            hit, error = rates.limits(level / len(observed))
            # (epsilon, delta)-DP for every point of the curve, in both directions.
            most_hits = float((epsilons.exp() * error + deltas).min())
            most_passes = float((epsilons.exp() * (1 - hit) + deltas).min())
            if hit > most_hits or 1 - error > most_passes:
                return True
        return False

    def bound(self, observed: Sequence[Rates], level: float) -> float:
        """The epsilon that these rates prove for a mechanism of this family."""
        low, high = self.sigma / _WIDEST, self.sigma * _WIDEST
        if not self.refuted(high, observed, level):
            return 0.0
        # Epsilon is large where noise is small: stay near the claim as long as possible.
        if self.refuted(self.sigma, observed, level):
            high = self.sigma
            while high > low and self.refuted(high / 2, observed, level):
                high /= 2
            low = high / 2
        else:
            low = self.sigma
            while low < high and not self.refuted(low * 2, observed, level):
                low *= 2
            high = low * 2
        while high / low > 1.005:
            middle = math.sqrt(low * high)
            if self.refuted(middle, observed, level):
                high = middle
            else:
                low = middle
        return epsilon_of(self.accesses, self.rate, high, self.delta)


def epsilon_bound(canaries: int, guesses: int, right: int, delta: float, level: float) -> float:
    """The largest epsilon that this many right guesses refute at this level (bisection)."""

    def refuted(epsilon: float) -> bool:
        return chance(canaries, guesses, right, epsilon, delta) < level

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high) and high < 64:
        low, high = high, 2 * high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def chance(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The largest probability of ``right`` right guesses under (epsilon, delta)-DP (Theorem 5.2).

    Right guesses are dominated by Binomial(r, e^eps / (1 + e^eps)); delta adds at most
    2 m delta max_i P[v > Binomial >= v - i] / i.
    """
    p = 1 / (1 + math.exp(-epsilon))
    counts = torch.arange(guesses + 1, dtype=torch.float64)
    ways = math.lgamma(guesses + 1) - torch.lgamma(counts + 1) - torch.lgamma(guesses - counts + 1)
    # log(1 - p) is written so that it stays finite for every epsilon.
    mass = (ways + counts * math.log(p) - (guesses - counts) * (epsilon - math.log(p))).exp()
    tail = float(mass[right:].sum())
    near = mass[:right].flip(0).cumsum(0) / torch.arange(1, right + 1, dtype=torch.float64)
    worst = float(near.max()) if right else 0.0
    return min(1.0, tail + 2 * canaries * delta * worst)


@dataclass(frozen=True)
class Guesses:
    """The best of several numbers of guesses: its bound, and how many were right."""

    bound: float
    number: int
    right: int


def best_guesses(scores: Tensor, included: Tensor, delta: float, level: float) -> Guesses:
    """The best bound over ``SHARES``, two-sided ("in" and "out") and one-sided ("in" alone)."""
    order = scores.argsort()
    level = level / (2 * len(SHARES))
    found = []
    for share in SHARES:
        half = max(1, int(len(order) * share) // 2)
        top = int(included[order[-half:]].sum())
        bottom = int((~included[order[:half]]).sum())
        for number, right in ((2 * half, top + bottom), (half, top)):
            bound = epsilon_bound(len(order), number, right, delta, level)
            found.append(Guesses(bound, number, right))
    return max(found, key=lambda guesses: guesses.bound)
