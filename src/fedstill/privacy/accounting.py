"""The epsilon of accesses to a client's records, computed by a maintained library.

Every access is one event: the Gaussian mechanism with noise multiplier sigma on a Poisson sample
at rate q, for neighbours that differ by adding or removing one record. The composition is
dp-accounting's (https://github.com/google/differential-privacy), by privacy loss distributions
(``pld``, the default) or by Renyi divergences (``rdp``: the older bound, larger, which most papers
use). No formula for epsilon here is our own.

A privacy loss distribution is kept on a grid and always rounded so that epsilon gets larger. The
grid is fitted to the spread of one access's loss: finer where many small losses add up, coarser
where a fine one would only cost time. The distribution of one access is kept, so that epsilon after
every round costs one composition.
"""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal

from fedstill.errors import RequestError

Accountant = Literal["rdp", "pld"]
DEFAULT_ACCOUNTANT: Accountant = "pld"

_LARGEST_SIGMA = 1e6
_LEAST_SIGMA = 1e-3
# The rounding errors of the library's Fourier transform grow with the number of compositions.
_MOST_COMPOSED = 2**20


@lru_cache(maxsize=4096)
def epsilon_of(
    accesses: int,
    rate: float,
    sigma: float,
    delta: float,
    accountant: Accountant = DEFAULT_ACCOUNTANT,
) -> float:
    """Epsilon of ``accesses`` accesses at this delta."""
    if accesses == 0:
        return 0.0
    if sigma == 0:
        return math.inf
    with _silenced():
        if accountant == "rdp" or accesses > _MOST_COMPOSED:
            return _renyi(accesses, rate, sigma, delta)
        return float(_composed(accesses, rate, sigma).get_epsilon_for_delta(delta))


@lru_cache(maxsize=64)
def delta_of(
    epsilons: tuple[float, ...], accesses: int, rate: float, sigma: float
) -> tuple[float, ...]:
    """Delta of ``accesses`` accesses at each epsilon, by privacy loss distributions: the curve that
    bounds every attacker's errors."""
    with _silenced():
        found = _composed(accesses, rate, sigma).get_delta_for_epsilon(list(epsilons))
    return tuple(float(delta) for delta in found)


@lru_cache(maxsize=256)
def sigma_for(
    epsilon: float,
    accesses: int,
    rate: float,
    delta: float,
    accountant: Accountant = DEFAULT_ACCOUNTANT,
    *,
    tolerance: float = 1e-6,
) -> float:
    """The least noise multiplier that keeps ``accesses`` accesses within epsilon.

    It may be larger by ``tolerance``, never smaller.
    """

    def fits(sigma: float) -> bool:
        return epsilon_of(accesses, rate, sigma, delta, accountant) <= epsilon

    high = 1.0
    while not fits(high):
        high *= 2
        if high > _LARGEST_SIGMA:
            raise RequestError(
                f"privacy.epsilon: no noise keeps {accesses} accesses within epsilon {epsilon:g}; "
                "plan fewer, or allow a larger epsilon"
            )
    low = high / 2
    while low > _LEAST_SIGMA and fits(low):
        low, high = low / 2, low
    if low <= _LEAST_SIGMA:
        return high
    found = _root(
        lambda sigma: epsilon_of(accesses, rate, sigma, delta, accountant) - epsilon,
        low,
        high,
        tolerance,
    )
    sigma = math.ceil(found * 1e5) / 1e5  # upwards: more noise never costs more
    while not fits(sigma):  # the root is exact to ``tolerance`` only
        sigma = round(sigma + max(1e-5, tolerance), 5)
    return sigma


def _root(excess: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """Where epsilon is met, between a sigma that is too small and one that is large enough."""
    from scipy.optimize import brentq

    # In logarithms of sigma, epsilon is closer to a straight line and fewer steps are needed.
    root = brentq(
        lambda log: excess(math.exp(log)), math.log(low), math.log(high), xtol=tolerance / high
    )
    return math.exp(root)


@lru_cache(maxsize=256)
def most_accesses(
    epsilon: float,
    rate: float,
    sigma: float,
    delta: float,
    accountant: Accountant = DEFAULT_ACCOUNTANT,
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


def _composed(accesses: int, rate: float, sigma: float) -> Any:
    if rate == 1:  # n Gaussian releases are one of sigma / sqrt(n)
        return _one_access(1.0, sigma / math.sqrt(accesses))
    return _one_access(rate, sigma).self_compose(accesses)


@lru_cache(maxsize=16)
def _one_access(rate: float, sigma: float) -> Any:
    """The privacy loss distribution of one access."""
    dp = _library()
    from dp_accounting.pld import privacy_loss_distribution as distributions

    return distributions.from_gaussian_mechanism(
        standard_deviation=sigma,
        value_discretization_interval=_grid(rate, sigma),
        sampling_prob=rate,
        neighboring_relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def _grid(rate: float, sigma: float) -> float:
    """The grid's step: about a twentieth of the standard deviation of one access's privacy loss.

    Epsilon is then too large by less than 0.5%. Powers of two, so that close sigmas share a step.
    """
    inverse = 1 / sigma**2
    spread = rate * math.sqrt(math.expm1(inverse)) if inverse < 20 else 1.0
    step = min(spread / 20, 1e-3)
    # The loss of an access with little noise reaches far: no more than about 100,000 steps.
    step = max(step, inverse * 1e-4)
    return float(2.0 ** math.floor(math.log2(step)))


def _renyi(accesses: int, rate: float, sigma: float, delta: float) -> float:
    dp = _library()
    from dp_accounting import rdp

    account = rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    account.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma)), accesses)
    return float(account.get_epsilon(delta))


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
