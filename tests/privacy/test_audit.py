"""The audit: sound mechanisms stay below their claim, broken ones are caught."""

import dataclasses
import json
import math
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fedstill.cli import app
from fedstill.methods import METHODS
from fedstill.methods.feddm import FedDM
from fedstill.methods.fedsgd import FedSGD
from fedstill.privacy.audit import (
    AuditSettings,
    audit,
    best_finding,
    chance,
    epsilon_bound,
    membership,
)
from fedstill.privacy.mechanism import PrivateRecords
from fedstill.private import PerRecord, PrivateForm
from fedstill.rng import Rng
from fedstill.types import ClientContext, Params
from tests.methods.small import SMALL, SMALL_PRIVATE
from tests.methods.test_conformance import PRIVATE

FAST = AuditSettings(epsilon=1.0, canaries=120)
IMAGES = {"images_per_class": 6, "iterations": 1, "server_epochs": 1}


def small(name: str) -> Any:
    cls = METHODS[name]
    settings = {**SMALL.get(name, {}), **SMALL_PRIVATE.get(name, {})}
    return cls(**{**cls.PRIVATE_DEFAULTS, **settings})


@pytest.mark.parametrize("name", PRIVATE)
def test_a_sound_mechanism_stays_below_its_claim(name: str) -> None:
    result = audit(small(name), name, FAST)
    assert result.claimed is not None
    assert result.finding.bound <= result.claimed <= FAST.epsilon
    assert not result.refuted
    form = small(name).private_form(FAST.rate)
    assert result.accesses == form.accesses


class NoiseOff(PrivateRecords):
    """Broken: the ledger is kept, the noise is not."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._terms = dataclasses.replace(self._terms, sigma=0.0)


class BatchClipping(PrivateRecords):
    """Broken: the mean of the batch is clipped, and noise added as if that were C / |B|."""

    def noisy_sum(self, per_record: PerRecord, *, clip: float | None = None) -> Params:
        terms, bound = self._terms, self.clip
        self._terms = dataclasses.replace(terms, clip=1e6, sigma=0.0)
        total = super().noisy_sum(per_record)
        self._terms = terms
        batch = self.expected_batch
        length = math.sqrt(sum(float(v.square().sum()) for v in total.values())) / batch
        shrink = min(1.0, bound / length) / batch
        noise, draw = self.sigma * bound / batch, Rng(1).torch()
        return {
            k: (v * shrink + noise * torch.randn(v.shape, generator=draw)) * batch
            for k, v in total.items()
        }


@pytest.mark.parametrize("name", ["fedsgd", "feddm"])
def test_noise_off_is_caught(name: str) -> None:
    result = audit(small(name), name, dataclasses.replace(FAST, canaries=200), NoiseOff)
    assert result.refuted
    assert result.finding.attacker == "releases"


def test_batch_clipping_is_caught() -> None:
    """What FedDM's box does: the noise is that of a mean of clipped vectors, but nothing in the
    mean was clipped. Records that point in many directions hide behind a short mean."""
    settings = dataclasses.replace(FAST, canaries=800, clip=0.1)
    assert not audit(FedSGD(weighting="uniform"), "sound", settings).refuted
    assert audit(FedSGD(weighting="uniform"), "broken", settings, BatchClipping).refuted


@dataclasses.dataclass(frozen=True)
class RealStart(FedDM):
    """Broken: a private form that starts from records, which the guards would refuse."""

    def private_form(self, rate: float) -> PrivateForm:
        return PrivateForm(self.iterations)

    def client(self, ctx: ClientContext, message: Any, state: Any) -> Any:
        up, after = super().client(ctx, message, state)
        assert ctx.private is not None
        stolen = ctx.private._door._records.all()[0][: len(up.synthetic)]  # type: ignore[attr-defined]
        images = up.synthetic.images.clone()
        images[: len(stolen)] = 0.1 * images[: len(stolen)] + stolen
        return dataclasses.replace(
            up, synthetic=dataclasses.replace(up.synthetic, images=images)
        ), after


def test_real_initialisation_is_caught() -> None:
    result = audit(RealStart(initial="noise", **IMAGES), "broken", FAST)  # type: ignore[arg-type]
    assert result.refuted
    assert result.finding.attacker == "message"


def test_synthetic_is_not_private() -> None:
    result = membership(FedDM(initial="real", **IMAGES), "feddm", FAST)  # type: ignore[arg-type]
    assert result is not None
    assert result.claimed is None
    assert result.finding.bound > 0.5


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
        scores = {"answers": answers.double() + 1e-3 * torch.rand(100, generator=generator)}
        above += best_finding(scores, included, 0.0, 0.95).bound > 1.0
    assert above <= 6


def test_the_command_says_it() -> None:
    arguments = ["audit", "feddm", "--canaries", "60", "--json"]
    for key, value in {**IMAGES, "release_steps": 1}.items():
        arguments += ["--set", f"method.{key}={value}"]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "the claim stands" in shown.output
    answer = json.loads(shown.output.splitlines()[-1])
    assert answer["refuted"] is False
    assert answer["without_privacy"]["finding"]["bound"] >= 0


@pytest.mark.parametrize("name", ["fedsynth", "dynafed", "distdd"])
def test_methods_whose_images_come_late_or_from_the_server_are_audited_too(name: str) -> None:
    """FedSynth sends batches, DistDD's server distils, DynaFed's server learns late."""
    settings = {"fedsynth": ["method.iterations=1", "method.batch_size=2"]}.get(name, [])
    words = ["audit", name, "--canaries", "30", "--json"]
    words += [part for setting in settings for part in ("--set", setting)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout.splitlines()[-1])
    assert not answer["refuted"]
    assert ("without_privacy" in answer) == (name != "dynafed")  # no image of it in one round
