"""Epsilon: golden values, other accountants, and the way back to sigma."""

import math

import pytest

from fedstill.errors import RequestError
from fedstill.privacy.accounting import Accountant, epsilon_of, most_accesses, sigma_for
from fedstill.privacy.budget import Plan
from fedstill.privacy.settings import PrivacySettings

BOTH: list[Accountant] = ["rdp", "pld"]


@pytest.mark.parametrize(
    ("accountant", "one_round", "fifteen"), [("rdp", 2.787, 10.184), ("pld", 2.384, 9.376)]
)
def test_the_published_budgets(accountant: Accountant, one_round: float, fifteen: float) -> None:
    """Fed-GLOSS-DP's table: sigma 1, q 0.0256, delta 1e-5, one round of 200 accesses and 15.

    The paper's accountant is RDP: 2.79 and 10.18.
    """
    assert epsilon_of(200, 0.0256, 1.0, 1e-5, accountant) == pytest.approx(one_round, abs=5e-4)
    assert epsilon_of(3000, 0.0256, 1.0, 1e-5, accountant) == pytest.approx(fifteen, abs=5e-4)


def test_privacy_loss_distributions_are_the_default_everywhere() -> None:
    assert epsilon_of(200, 0.0256, 1.0, 1e-5) == epsilon_of(200, 0.0256, 1.0, 1e-5, "pld")
    assert sigma_for(3.0, 10, 0.1, 1e-5) == sigma_for(3.0, 10, 0.1, 1e-5, "pld")
    assert most_accesses(3.0, 0.1, 1.0, 1e-5) == most_accesses(3.0, 0.1, 1.0, 1e-5, "pld")
    assert PrivacySettings().accountant == "pld"
    assert Plan(1, 1, 0.1, 1e-5).accountant == "pld"


@pytest.mark.parametrize(
    ("accesses", "rate", "sigma", "delta"),
    [(200, 0.0256, 1.0, 1e-5), (50, 0.1, 1.5, 1e-5), (7, 1.0, 4.0, 1e-6), (1000, 0.01, 0.8, 1e-4)],
)
def test_opacus_agrees(accesses: int, rate: float, sigma: float, delta: float) -> None:
    opacus = pytest.importorskip("opacus.accountants")
    for name, ours, tolerance in (("rdp", "rdp", 0.02), ("prv", "pld", 0.03)):
        other = opacus.create_accountant(mechanism=name)
        other.history = [(sigma, rate, accesses)]
        theirs = other.get_epsilon(delta=delta)
        mine = epsilon_of(accesses, rate, sigma, delta, ours)
        assert mine == pytest.approx(theirs, rel=tolerance), name


@pytest.mark.parametrize(
    ("accesses", "rate", "sigma"),
    [
        (200, 0.0256, 1.0),
        pytest.param(10, 0.1, 0.3, marks=pytest.mark.slow),  # a fine grid takes half a minute here
        (1, 0.5, 20.0),
        (3000, 0.001, 1.0),
        (500, 0.01, 5.0),
    ],
)
def test_our_grid_never_flatters_and_is_close_to_a_fine_one(
    accesses: int, rate: float, sigma: float
) -> None:
    """The library's own accountant on a grid of 2e-5, finer than any of ours here."""
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    event = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma))
    account = PLDAccountant(value_discretization_interval=2e-5)
    fine = account.compose(event, accesses).get_epsilon(1e-5)
    assert fine * (1 - 1e-6) <= epsilon_of(accesses, rate, sigma, 1e-5) <= fine * 1.006


def test_a_full_batch_is_one_gaussian_release() -> None:
    """n releases with sigma are one with sigma / sqrt(n); the closed form of Balle and Wang."""
    sigma, releases, delta = 4.0, 9, 1e-5
    epsilon, mu = epsilon_of(releases, 1.0, sigma, delta), math.sqrt(releases) / sigma

    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    exact = phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)
    assert exact == pytest.approx(delta, rel=1e-3)


@pytest.mark.parametrize("accountant", BOTH)
@pytest.mark.parametrize(
    ("epsilon", "accesses", "rate"), [(3.0, 100, 0.1), (0.3, 20, 0.02), (12.0, 3, 1.0)]
)
def test_sigma_keeps_within_the_budget_and_wastes_none_of_it(
    accountant: Accountant, epsilon: float, accesses: int, rate: float
) -> None:
    sigma = sigma_for(epsilon, accesses, rate, 1e-5, accountant)
    spent = epsilon_of(accesses, rate, sigma, 1e-5, accountant)
    assert epsilon * (1 - 1e-3) < spent <= epsilon
    assert most_accesses(epsilon, rate, sigma, 1e-5, accountant) == accesses


def test_a_budget_that_no_noise_keeps_is_refused() -> None:
    with pytest.raises(RequestError, match="plan fewer, or allow a larger epsilon"):
        sigma_for(1e-9, 10, 1.0, 1e-12, "rdp")


@pytest.mark.parametrize("accountant", BOTH)
def test_most_accesses_is_the_last_that_fits(accountant: Accountant) -> None:
    most = most_accesses(3.0, 0.05, 1.0, 1e-5, accountant)
    assert epsilon_of(most, 0.05, 1.0, 1e-5, accountant) <= 3.0
    assert epsilon_of(most + 1, 0.05, 1.0, 1e-5, accountant) > 3.0
    assert most_accesses(0.01, 0.5, 0.5, 1e-5, accountant) == 0


def test_nothing_costs_nothing_and_no_noise_costs_all() -> None:
    assert epsilon_of(0, 0.1, 1.0, 1e-5) == 0.0
    assert epsilon_of(1, 0.1, 0.0, 1e-5) == math.inf
