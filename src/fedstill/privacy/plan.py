"""The plan of a private run: all its public numbers, fixed before any record is read."""

from dataclasses import dataclass
from pathlib import Path

import torch

from fedstill.errors import RequestError
from fedstill.privacy.accounting import Accountant, epsilon_of, most_accesses, sigma_for
from fedstill.privacy.ledger import Counter, LargestCount, Ledger, ledger_of
from fedstill.privacy.mechanism import DoorTerms, PrivateRecords
from fedstill.privacy.randomness import OperatingSystem, Replayed
from fedstill.privacy.settings import PrivacySettings
from fedstill.records import Records
from fedstill.rng import Rng
from fedstill.types import Task


@dataclass(frozen=True)
class PrivatePlan:
    """What every client must follow. Plain values: worker processes get it unchanged.

    ``accesses`` are per client and round, ``first`` those of a first round that another method
    makes, ``most`` is the total that the budget allows per client; ``classes`` are those each
    client sends.
    """

    epsilon: float | None
    delta: float
    sigma: float
    accountant: Accountant
    rate: float
    clip: float
    accesses: int
    most: int | None
    sizes: tuple[int, ...]
    classes: tuple[tuple[int, ...], ...]
    counts_released: bool
    reproducible: bool
    first: int | None = None

    def accesses_in(self, round: int) -> int:
        """A client's accesses in this round."""
        return self.accesses if round > 1 or self.first is None else self.first

    def spent(self, accesses: int) -> float:
        """Epsilon of ``accesses`` accesses."""
        return epsilon_of(accesses, self.rate, self.sigma, self.delta, self.accountant)

    @property
    def promise(self) -> str:
        """What the run's epsilon guarantees, as a sentence."""
        if self.reproducible:
            return (
                "NOT PRIVATE: the noise comes from the seed (privacy.reproducible), so anyone who "
                "knows the seed can subtract the noise; epsilon is what the same run would cost "
                "with secret noise"
            )
        return (
            f"epsilon at delta {self.delta:g} for adding or removing one record, worst client, of "
            f"all it ever sent: Poisson samples at q {self.rate:g}, clip {self.clip:g}, Gaussian "
            f"noise of sigma {self.sigma:g} times the clip"
        )

    def ledger(self, folder: Path, client: int) -> Ledger:
        """A client's ledger in the run's ledger folder."""
        return ledger_of(folder, client, self.rate, self.sigma, self.most)

    def largest_count(self, folder: Path) -> LargestCount:
        """What the worst client of the run has spent, in accesses."""
        return LargestCount(folder, self.rate, self.sigma)

    def door(
        self, records: Records, task: Task, client: int, round: int, rng: Rng, counter: Counter
    ) -> PrivateRecords:
        """The door to one client's records in one round; ``counter`` counts its accesses."""
        terms = DoorTerms(
            rate=self.rate,
            sigma=self.sigma,
            clip=self.clip,
            size=self.sizes[client],
            classes=torch.tensor(self.classes[client], dtype=torch.int64),
            counts_released=self.counts_released,
        )
        randomness = Replayed(rng) if self.reproducible else OperatingSystem()
        return PrivateRecords(records, counter, randomness, terms, round, task.record_chunk)


def make_plan(
    settings: PrivacySettings,
    rate: float,
    sizes: tuple[int, ...],
    classes: tuple[tuple[int, ...], ...],
    accesses: int,
    first: int | None,
    planned: int,
) -> PrivatePlan:
    """The plan; ``planned`` are all accesses of the client that takes part most often.

    Which clients are sampled is public, so no amplification is claimed for it; but a client that is
    not sampled in a round has no accesses in it.
    """
    delta, accountant = settings.delta, settings.accountant
    sigma = settings.sigma
    if sigma is None:
        assert settings.epsilon is not None
        sigma = sigma_for(settings.epsilon, planned, rate, delta, accountant)
    most = None
    if settings.epsilon is not None:
        most = most_accesses(settings.epsilon, rate, sigma, delta, accountant)
        needed = max(accesses, first or 0)
        if most < needed:
            raise RequestError(
                f"privacy.epsilon = {settings.epsilon:g}: sigma {sigma:g} allows {most} accesses "
                f"and one round makes {needed}; raise epsilon or sigma, or lower "
                "privacy.sampling_rate or the method's number of steps"
            )
    return PrivatePlan(
        epsilon=settings.epsilon,
        delta=delta,
        sigma=sigma,
        accountant=accountant,
        rate=rate,
        clip=settings.clip,
        accesses=accesses,
        most=most,
        sizes=sizes,
        classes=classes,
        counts_released=settings.class_counts == "released",
        reproducible=settings.reproducible,
        first=first,
    )
