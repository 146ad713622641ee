"""Epsilon: golden values, other accountants, and the way back to sigma."""

import math

import pytest

from fedstill.privacy.accounting import epsilon_of, most_accesses, sigma_for


def test_the_published_budgets() -> None:
    """Fed-GLOSS-DP's table: sigma 1, q 0.0256, delta 1e-5, one round of 200 accesses and 15."""
    assert epsilon_of(200, 0.0256, 1.0, 1e-5) == pytest.approx(2.79, abs=0.005)
    assert epsilon_of(3000, 0.0256, 1.0, 1e-5) == pytest.approx(10.18, abs=0.005)


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


def test_pld_is_the_tighter_one() -> None:
    assert epsilon_of(200, 0.0256, 1.0, 1e-5, "pld") < epsilon_of(200, 0.0256, 1.0, 1e-5)


def test_sigma_keeps_within_the_budget_and_wastes_none_of_it() -> None:
    sigma = sigma_for(3.0, 100, 0.1, 1e-5)
    assert 3.0 - 1e-3 < epsilon_of(100, 0.1, sigma, 1e-5) <= 3.0


def test_most_accesses_is_the_last_that_fits() -> None:
    most = most_accesses(3.0, 0.05, 1.0, 1e-5)
    assert epsilon_of(most, 0.05, 1.0, 1e-5) <= 3.0 < epsilon_of(most + 1, 0.05, 1.0, 1e-5)
    assert most_accesses(0.01, 0.5, 0.5, 1e-5) == 0


def test_nothing_costs_nothing_and_no_noise_costs_all() -> None:
    assert epsilon_of(0, 0.1, 1.0, 1e-5) == 0.0
    assert epsilon_of(1, 0.1, 0.0, 1e-5) == math.inf
