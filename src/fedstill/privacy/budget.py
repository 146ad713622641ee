"""What a budget buys, before any data is touched: the tables of ``fedstill privacy``."""

import itertools
from dataclasses import dataclass

from fedstill.privacy.accounting import (
    DEFAULT_ACCOUNTANT,
    Accountant,
    epsilon_of,
    most_accesses,
    sigma_for,
)

_ROUGHLY = 0.01  # tolerance of sigma, enough to compare plans


@dataclass(frozen=True)
class Plan:
    """A client's accesses: ``accesses`` per round for ``rounds`` rounds, each at rate ``q``."""

    rounds: int
    accesses: int
    q: float
    delta: float
    accountant: Accountant = DEFAULT_ACCOUNTANT

    @property
    def total(self) -> int:
        return self.rounds * self.accesses

    def sigma(self, epsilon: float) -> float:
        """The noise multiplier that keeps the whole plan within epsilon."""
        return sigma_for(epsilon, self.total, self.q, self.delta, self.accountant)

    def epsilon(self, sigma: float, rounds: int | None = None) -> float:
        """Epsilon of ``rounds`` rounds (default: all of them)."""
        accesses = self.accesses * (self.rounds if rounds is None else rounds)
        return epsilon_of(accesses, self.q, sigma, self.delta, self.accountant)

    def affordable(self, epsilon: float, sigma: float) -> int:
        """Whole rounds that stay within epsilon."""
        return most_accesses(epsilon, self.q, sigma, self.delta, self.accountant) // self.accesses


@dataclass(frozen=True)
class Choice:
    """One way to spend a budget.

    ``noise``: the standard deviation of the mean over all releases, per unit of clip and relative
    to that of the plan; a record's contribution to that mean is the same in each choice, so less
    noise is better.
    """

    q: float
    accesses: int
    sigma: float
    noise: float


def choices(plan: Plan, epsilon: float) -> list[Choice]:
    """The same budget at other rates and numbers of accesses, with the resulting noise.

    A mean over m accesses at rate q has noise of standard deviation sigma C / (q n sqrt(m)).
    """
    rates = sorted({min(1.0, plan.q * factor) for factor in (0.5, 1.0, 2.0)})
    totals = sorted({max(1, round(plan.total * factor)) for factor in (0.25, 1.0, 4.0)})
    planned = plan.sigma(epsilon) / (plan.q * plan.total**0.5)
    table: list[Choice] = []
    for q, accesses in itertools.product(rates, totals):
        sigma = sigma_for(epsilon, accesses, q, plan.delta, plan.accountant, tolerance=_ROUGHLY)
        table.append(Choice(q, accesses, sigma, sigma / (q * accesses**0.5) / planned))
    return table


def by_round(plan: Plan, sigma: float, most: int = 20) -> list[tuple[int, float]]:
    """Epsilon after at most ``most`` rounds, spread evenly; the last one is among them."""
    step = max(1, -(-plan.rounds // most))
    rounds = sorted({*range(step, plan.rounds + 1, step), 1, plan.rounds})
    return [(r, plan.epsilon(sigma, r)) for r in rounds]
