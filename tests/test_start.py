"""A run of one method that starts with a round of another."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fedstill
from fedstill.build import build
from fedstill.errors import Interrupted, RequestError
from fedstill.forecast import notes
from fedstill.observe.observer import Observer
from fedstill.privacy.accounting import epsilon_of
from fedstill.runs.folder import RunFolder
from fedstill.runs.metrics import RoundMetrics

ANALYTIC: dict[str, Any] = {
    "features": "orientation",
    "clients": 4,
    "seed": 3,
    "workers": 1,
    "progress": False,
}
SKETCH = {"start": {"name": "sketch", "networks": 2, "steps": 3, "server_steps": 3}}
FEDDM = {"method.images_per_class": 1, "method.iterations": 2, "method.server_steps": 2}


class Stop(Observer):
    def round_done(self, metrics: RoundMetrics) -> None:
        raise KeyboardInterrupt


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_the_method_goes_on_from_the_weights_of_the_first_round(tmp_path: Path) -> None:
    alone = fedstill.run("analytic", out=tmp_path / "alone", **ANALYTIC)
    # A learning rate too small to change a weight: the second round starts where the first ended.
    still = {"start": "analytic", "method.learning_rate": 1e-30}
    both = fedstill.run("fedavg", rounds=2, out=tmp_path / "both", set=still, **ANALYTIC)
    assert both.metrics[0].accuracy == alone.summary.accuracy
    assert both.metrics[0].up_bytes == alone.summary.up_bytes
    for name, value in weights(alone.folder).items():
        assert torch.allclose(weights(both.folder)[name], value, atol=1e-6)
    assert both.metrics[1].up_bytes < both.metrics[0].up_bytes  # weights, not statistics
    config = RunFolder(both.folder).read_config()
    assert config["start"]["head"] == "lda"  # every setting is on record


def test_interrupted_after_the_first_round_and_resumed(tmp_path: Path) -> None:
    options = {**ANALYTIC, "rounds": 3, "set": {"start": "analytic"}}
    whole = fedstill.run("fedavg", out=tmp_path / "whole", **options)
    with pytest.raises(Interrupted, match="resume"):
        fedstill.run("fedavg", out=tmp_path / "parts", observer=Stop(), **options)
    resumed = fedstill.run(out=tmp_path / "parts", resume=True, progress=False)
    for name, value in weights(whole.folder).items():
        assert torch.equal(weights(resumed.folder)[name], value)
    assert [m.accuracy for m in whole.metrics] == [m.accuracy for m in resumed.metrics]


def test_workers_know_the_method_of_each_round(tmp_path: Path) -> None:
    options = {**ANALYTIC, "rounds": 2, "set": {"start": "analytic"}}
    one = fedstill.run("fedavg", out=tmp_path / "one", **options)
    two = fedstill.run("fedavg", out=tmp_path / "two", **{**options, "workers": 2})
    for name, value in weights(one.folder).items():
        assert torch.equal(weights(two.folder)[name], value)


def test_one_ledger_pays_for_both(tmp_path: Path) -> None:
    """The first round is one access, each later one as many as the method has iterations."""
    result = fedstill.run(
        "feddm",
        clients=2,
        rounds=3,
        epsilon=2.0,
        model="convnet-small",
        workers=1,
        out=tmp_path / "run",
        set={**SKETCH, **FEDDM, "privacy.public_size": 500},
        progress=False,
    )
    sigma = RunFolder(result.folder).read_config()["privacy"]["sigma"]
    spent = [m.epsilon for m in result.metrics]
    expected = [epsilon_of(accesses, 1.0, sigma, 1e-5) for accesses in (1, 3, 5)]
    assert spent == pytest.approx(expected)
    assert 1.9 < expected[-1] <= 2.0
    assert result.synthetic(1).images.shape[0] == 200  # of the sketch
    assert result.synthetic(2).images.shape[0] == 2 * 10


def test_a_run_says_whose_the_first_round_is() -> None:
    built = build({"method": "feddm", "start": "sketch", "rounds": 2})
    said = "round 1 is sketch's: feddm goes on from its weights"
    assert said in list(notes(built, first=True))
    assert said not in list(notes(built, first=False))


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_the_plan_counts_the_client_with_the_most_accesses(participation: float) -> None:
    request = {
        "method": {"name": "feddm", "iterations": 4},
        "clients": 4,
        "rounds": 3,
        "participation": participation,
        "start": "sketch",
        "privacy": {"epsilon": 2.0, "public_size": 500},
    }
    built = build(request).planned()
    assert built.plan is not None
    assert (built.plan.accesses_in(1), built.plan.accesses_in(2)) == (1, 4)
    rounds = [built.sample(number) for number in (1, 2, 3)]
    made = [sum((1, 4, 4)[r] for r in range(3) if client in rounds[r]) for client in range(4)]
    assert epsilon_of(max(made), 1.0, built.plan.sigma, 1e-5) == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"start": "sketch", "rounds": 1}, "start: the first round is sketch's"),
        ({"start": "fedavg"}, "start.name: a run starts with one of analytic, sketch"),
        ({"start": {"name": "sketch", "network": 3}}, "start.network: no such"),
        ({"start": {"name": "sketch", "networks": 0}}, "start.networks"),
        (
            {"start": "sketch", "privacy": {"epsilon": 1.0, "sampling_rate": 0.1}},
            "privacy.sampling_rate = 0.1: 'sketch'",
        ),
        ({"start": "analytic"}, "model: analytic solves for one linear layer"),
        ({"method": "distdd", "start": "sketch"}, "start: distdd begins with networks of its own"),
        (
            {"method": "local-gm", "start": "sketch"},
            "start: local-gm begins with networks of its own",
        ),
    ],
)
def test_wrong_starts_are_refused(request_: dict[str, Any], words: str) -> None:
    request: dict[str, Any] = {"method": "feddm", "model": "convnet-small", **request_}

    def check() -> None:
        build(request).planned().refuse_useless_start()

    with pytest.raises(RequestError) as refused:
        check()
    assert words in str(refused.value)
