"""The epsilon of accesses to a client's records, computed by a maintained library.

Every access is one event: the Gaussian mechanism with noise multiplier sigma on a Poisson sample
at rate q, for neighbours that differ by adding or removing one record. The composition is
dp-accounting's (https://github.com/google/differential-privacy), by Renyi divergences (``rdp``) or
privacy loss distributions (``pld``, tighter and slower). No formula here is our own.
"""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal

from fedstill.errors import RequestError

Accountant = Literal["rdp", "pld"]

_LARGEST_SIGMA = 1e6


@lru_cache(maxsize=4096)
def epsilon_of(
    accesses: int, rate: float, sigma: float, delta: float, accountant: Accountant = "rdp"
) -> float:
    """Epsilon of ``accesses`` accesses at this delta."""
    if accesses == 0:
        return 0.0
    if sigma == 0:
        return math.inf
    with _silenced():
        account = _account(accountant)
        account.compose(_event(rate, sigma), accesses)
        return float(account.get_epsilon(delta))


def sigma_for(
    epsilon: float,
    accesses: int,
    rate: float,
    delta: float,
    accountant: Accountant = "rdp",
    *,
    tolerance: float = 1e-6,
) -> float:
    """The least noise multiplier that keeps ``accesses`` accesses within epsilon.

    It may be larger by ``tolerance``, never smaller.
    """
    dp = _library()

    def all_of(sigma: float) -> Any:
        return dp.SelfComposedDpEvent(_event(rate, sigma), accesses)

    with _silenced():
        try:
            found: float = dp.calibrate_dp_mechanism(
                lambda: _account(accountant), all_of, epsilon, delta, tol=tolerance
            )
        except (ValueError, OverflowError) as error:
            raise RequestError(f"privacy.epsilon: {_no_sigma(epsilon, accesses)}") from error
    sigma = math.ceil(found * 1e5) / 1e5  # upwards: more noise never costs more
    if not math.isfinite(sigma) or sigma > _LARGEST_SIGMA:
        raise RequestError(f"privacy.epsilon: {_no_sigma(epsilon, accesses)}")
    return sigma


def _no_sigma(epsilon: float, accesses: int) -> str:
    return (
        f"no noise keeps {accesses} accesses within epsilon {epsilon:g}; "
        "plan fewer, or allow a larger epsilon"
    )


@lru_cache(maxsize=256)
def most_accesses(
    epsilon: float, rate: float, sigma: float, delta: float, accountant: Accountant = "rdp"
) -> int:
    """How many accesses stay within epsilon: doubling, then bisection."""

    def fits(accesses: int) -> bool:
        return epsilon_of(accesses, rate, sigma, delta, accountant) <= epsilon

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
        if high > 2**40:  # more than any run makes
            return low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _event(rate: float, sigma: float) -> Any:
    dp = _library()
    return dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma))


def _account(accountant: Accountant) -> Any:
    dp = _library()
    neighbours = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    if accountant == "pld":
        from dp_accounting import pld

        return pld.PLDAccountant(neighbours)
    from dp_accounting import rdp

    return rdp.RdpAccountant(neighboring_relation=neighbours)


def _library() -> Any:
    """dp-accounting; the import takes about 1 s, so only private runs do it."""
    try:
        import dp_accounting
    except ImportError as error:
        raise RequestError(
            "privacy: the accountant is not installed; pip install 'fedstill[privacy]'"
        ) from error
    return dp_accounting


@contextmanager
def _silenced() -> Iterator[None]:
    """Suppresses warnings on single Renyi orders: skipping one only makes epsilon larger."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
