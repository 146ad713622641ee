"""The ``[privacy]`` section of a configuration. With it, a run is private or refused."""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from fedstill.data.catalogue import SOURCES
from fedstill.errors import RequestError
from fedstill.privacy.accounting import DEFAULT_ACCOUNTANT, Accountant

DEFAULT_RATE = 0.1
DELTA = 1e-5


@dataclass(frozen=True)
class PrivacySettings:
    """Record-level differential privacy: what is guaranteed, and how.

    ``epsilon``: the budget; sigma is then solved for from the plan, and the run stops before an
    access that would exceed it. ``sigma``: the noise multiplier; with no epsilon, the run reports
    what it spent. ``sampling_rate`` is q; ``expected_batch`` gives it as q = batch / public size.
    ``public_size``: how many records each client is publicly known to have, one number or one per
    client; known data sets have a default. ``classes``: what a client sends: ``all`` classes, or
    those it holds, which the user thereby declares public. ``class_counts``: how many records of
    a class a sample had: from the noisy release, or ``public_size`` spread evenly.
    ``scaling``: ``public`` declares that ``data.mean`` and ``data.std`` are not from the records.
    ``reproducible``: noise from the seed. For tests: it protects nobody.
    """

    epsilon: Annotated[float, Meta(gt=0)] | None = None
    delta: Annotated[float, Meta(gt=0, lt=1)] = DELTA
    sigma: Annotated[float, Meta(ge=1e-3, le=1e6)] | None = None
    clip: Annotated[float, Meta(ge=1e-6)] = 1.0  # squares of smaller norms lose digits
    sampling_rate: Annotated[float, Meta(ge=1e-9, le=1)] | None = None
    expected_batch: Annotated[float, Meta(gt=0)] | None = None
    public_size: Annotated[int, Meta(ge=1)] | tuple[Annotated[int, Meta(ge=1)], ...] | None = None
    classes: Literal["all", "declared"] = "all"
    class_counts: Literal["released", "public"] = "released"
    scaling: Literal["unknown", "public"] = "unknown"
    accountant: Accountant = DEFAULT_ACCOUNTANT
    reproducible: bool = False

    def check(self) -> None:
        """Refuse what contradicts itself."""
        if self.epsilon is None and self.sigma is None:
            raise RequestError(
                "privacy: neither epsilon nor sigma is set; give the budget, --epsilon 3, or the "
                "noise, --set privacy.sigma=1"
            )
        if self.sampling_rate is not None and self.expected_batch is not None:
            raise RequestError(
                "privacy.sampling_rate and privacy.expected_batch set the same thing; give one"
            )

    def sizes(self, clients: int, data: str) -> tuple[int, ...]:
        """The declared number of records of each client."""
        if isinstance(self.public_size, int):
            return (self.public_size,) * clients
        if self.public_size is not None:
            if len(self.public_size) != clients:
                raise RequestError(
                    f"privacy.public_size: {len(self.public_size)} numbers for {clients} clients; "
                    "give one per client, or one for all"
                )
            return self.public_size
        source = SOURCES.get(data)
        if source is None or source.records is None:
            raise RequestError(
                "privacy.public_size: how many records is a client publicly known to have? The "
                "true number is private; declare a rough one, e.g. privacy.public_size=1000"
            )
        return (max(1, source.records // clients),) * clients

    def rate(self, sizes: tuple[int, ...], default: float = DEFAULT_RATE) -> float:
        """q, the sampling rate; ``default`` is the method's."""
        if self.expected_batch is not None:
            return min(1.0, self.expected_batch * len(sizes) / sum(sizes))
        return default if self.sampling_rate is None else self.sampling_rate
