"""The two tests of an audit: what they prove, and that they rarely prove what is false."""

import math
from statistics import NormalDist

import pytest
import torch

from fedstill.privacy.accounting import epsilon_of, sigma_for
from fedstill.privacy.audit_bounds import Claim, Rates, best_guesses, chance, epsilon_bound
from fedstill.privacy.canaries import Attacker
from fedstill.privacy.mechanism import DoorTerms
from fedstill.rng import Rng


def test_chance_without_privacy_loss_is_a_fair_coin() -> None:
    tail = sum(math.comb(20, k) for k in range(15, 21)) / 2**20
    assert chance(50, 20, 15, 0.0, 0.0) == pytest.approx(tail)
    assert chance(50, 20, 15, 1.0, 0.0) > tail
    assert chance(50, 20, 15, 0.0, 1e-2) > tail


def test_the_bound_refutes_just_what_it_says() -> None:
    bound = epsilon_bound(100, 100, 95, 1e-5, 0.05)
    assert chance(100, 100, 95, bound, 1e-5) == pytest.approx(0.05, rel=1e-3)
    assert epsilon_bound(100, 100, 50, 1e-5, 0.05) == 0.0
    all_right = epsilon_bound(100, 100, 100, 0.0, 0.05)
    assert all_right == pytest.approx(math.log(0.05**0.01 / (1 - 0.05**0.01)), rel=1e-3)


def test_guesses_by_chance_bound_nothing() -> None:
    """Randomised response at epsilon 1, whose truth is known: below it in all but 5% of runs."""
    generator = Rng(0).torch()
    above = 0
    for _ in range(60):
        included = torch.rand(100, generator=generator) < 0.5
        kept = torch.rand(100, generator=generator) < 1 / (1 + math.exp(-1))
        answers = torch.where(kept, included, ~included)
        scores = answers.double() + 1e-3 * torch.rand(100, generator=generator)
        above += best_guesses(scores, included, 0.0, 0.05).bound > 1.0
    assert above <= 6


def test_few_sure_guesses_are_found() -> None:
    """Twenty of 2000 canaries leak: only small numbers of guesses, one-sided, show it."""
    included = torch.arange(2000) % 2 == 0
    scores = torch.rand(2000, generator=Rng(0).torch(), dtype=torch.float64)
    scores[included.nonzero().flatten()[:20]] = 2.0
    best = best_guesses(scores, included, 0.0, 0.05)
    assert best.bound > 1.0
    assert best.number <= 40


def test_without_sampling_it_is_the_bound_of_gaussian_differential_privacy() -> None:
    rates = Rates(inside=2000, outside=2000, true_positives=1200, false_positives=620)
    hit, error = rates.limits(0.05)
    assert hit < 0.6 < hit + 0.03
    assert error > 0.31 > error - 0.03
    mu = NormalDist().inv_cdf(hit) - NormalDist().inv_cdf(error)
    claim = Claim(accesses=4, rate=1.0, sigma=2.5, delta=1e-5)
    assert claim.bound([rates], 0.05) == pytest.approx(epsilon_of(1, 1.0, 1 / mu, 1e-5), rel=0.01)


def test_limits_are_those_of_clopper_and_pearson() -> None:
    perfect = Rates(100, 100, 50, 50).perfect
    hit, error = perfect.limits(0.05)
    assert hit == pytest.approx(0.025 ** (1 / 100))
    assert error == pytest.approx(1 - 0.025 ** (1 / 100))
    assert Rates(10, 10, 0, 10).limits(0.05) == (0.0, 1.0)


def test_chance_proves_nothing() -> None:
    claim = Claim(accesses=1, rate=1.0, sigma=1.0, delta=1e-5)
    assert claim.bound([Rates(500, 500, 250, 250)], 0.05) == 0.0


@pytest.mark.parametrize(("rate", "accesses"), [(1.0, 1), (0.2, 10)])
def test_a_true_claim_is_rarely_refuted_and_half_its_noise_always(
    rate: float, accesses: int
) -> None:
    """The mechanism itself, simulated, at a level of 10%: 200 audits of 400 canaries each."""
    sigma = sigma_for(3.0, accesses, rate, 1e-5)
    claim = Claim(accesses, rate, sigma, 1e-5)
    terms = DoorTerms(rate, sigma, 1.0, 100, torch.arange(10))
    draw, refuted, threshold = Rng(0).torch(), {1.0: 0, 0.5: 0}, None
    for noise in refuted:
        for _ in range(200 if noise == 1.0 else 20):
            canaries = 400 if noise == 1.0 else 4000
            attacker = Attacker(terms, canaries)
            included = torch.rand(canaries, generator=draw) < 0.5
            for _access in range(accesses):
                sampled = torch.rand(canaries, generator=draw) < rate
                values = (included & sampled) + noise * sigma * torch.randn(
                    canaries, generator=draw
                )
                attacker.see(values, torch.ones(canaries, dtype=torch.bool), 1.0, sigma)
            threshold = threshold or attacker.threshold(0.3, Rng(1))  # the same for all
            rates = Rates.at(threshold, attacker.scores, included)
            refuted[noise] += claim.refuted(sigma, [rates], 0.1)
    assert refuted[1.0] <= 20
    assert refuted[0.5] == 20
