"""`fedstill audit`: of a method, on some data, and of a finished run's configuration."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedstill
from fedstill.cli import app
from fedstill.errors import RequestError
from fedstill.privacy.mechanism import PrivateRecords

# The noise is the operating system's: sound mechanisms are refuted once in 10,000 audits.
SURE = ["--confidence", "0.9999", "--json"]
IMAGES = {"images_per_class": 6, "iterations": 1, "server_epochs": 1, "release_steps": 1}


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["audit", *words])


def answer(*words: str) -> tuple[Any, dict[str, Any]]:
    done = run(*words)
    assert done.exit_code == 0, done.output
    return done, json.loads(done.stdout.splitlines()[-1])


def halved(monkeypatch: pytest.MonkeyPatch) -> None:
    half = property(lambda door: door._terms.sigma / 2)
    monkeypatch.setattr(PrivateRecords, "sigma", half)


def test_a_method_is_not_refuted_and_the_words_promise_nothing() -> None:
    settings = [f"method.{key}={value}" for key, value in IMAGES.items()]
    words = [part for setting in settings for part in ("--set", setting)]
    done, found = answer("feddm", *SURE, *words)
    assert "not refuted: this proves nothing by itself" in done.output
    assert "the claim stands" not in done.output
    assert (found["refuted"], found["verdict"]) == (False, "not refuted")
    assert found["audit"]["claimed"] == pytest.approx(3.0, abs=0.01)
    assert {f["test"] for f in found["audit"]["findings"]} == {"gaussian", "guesses"}
    assert found["without_privacy"]["finding"]["bound"] > 0.5  # it starts from real images


def test_a_broken_mechanism_ends_with_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    halved(monkeypatch)
    done = run("fedsgd", "--epsilon", "3", *SURE)
    assert done.exit_code == 1, done.output
    assert "REFUTED: the claim is false" in done.output
    assert json.loads(done.stdout.splitlines()[-1])["verdict"] == "refuted"


def test_without_power_it_says_so() -> None:
    done, found = answer("fedsgd", "--canaries", "16", *SURE)
    assert "no power" in done.output
    assert "even a mechanism without noise would not have been refuted" in done.output
    assert (found["refuted"], found["verdict"]) == (False, "no power")


@pytest.mark.parametrize("name", ["fedsynth", "dynafed", "distdd"])
def test_methods_whose_images_come_late_or_from_the_server_are_audited_too(name: str) -> None:
    """FedSynth sends batches, DistDD's server distils, DynaFed's server learns late."""
    settings = {"fedsynth": ["method.iterations=1", "method.batch_size=2"]}.get(name, [])
    words = [part for setting in settings for part in ("--set", setting)]
    _, found = answer(name, "--canaries", "30", *SURE, *words)
    assert not found["refuted"]
    assert ("without_privacy" in found) == (name != "dynafed")  # no image of it in one round


def test_data_and_their_network_give_the_shapes(tmp_path: Path) -> None:
    """Convnet-small on the digits; and a text, which has no image to search for."""
    _, found = answer("fedsgd", "--data", "digits", "--canaries", "500", *SURE)
    assert found["audit"]["canaries"] == 500
    play = tmp_path / "play.txt"
    lines = (f"{who}:\n{'the cat sees the moon. ' * 20}\n\n" for who in ("ANN", "BEN"))
    play.write_text("".join(lines))
    small = ["--model", "gru", "--set", "model.width=8", "--set", "privacy.sigma=2"]
    _, text = answer("fedsgd", "--data", str(play), *small, *SURE)
    assert text["audit"]["sigma"] == 2.0


def private_run(out: Path, **settings: Any) -> Path:
    fedstill.run(
        "fedavg",
        out=out,
        rounds=3,
        clients=3,
        workers=1,
        model="mlp",
        participation=0.7,
        epsilon=None if "privacy.sigma" in settings else 3.0,
        set={"model.width": 30, "privacy.sampling_rate": 0.5, **settings},
    )
    return out


def test_a_run_is_audited_and_keeps_the_result(tmp_path: Path) -> None:
    out = private_run(tmp_path / "run")
    summary = json.loads((out / "summary.json").read_text())
    done, found = answer(str(out), *SURE)
    assert "not refuted: this proves nothing by itself" in done.output
    kept = json.loads((out / "audit.json").read_text())
    assert kept["verdict"] == found["verdict"] == "not refuted"
    assert kept["audit"]["claimed"] == pytest.approx(summary["epsilon"])
    last = [f.read_text().splitlines()[-1] for f in (out / "ledger").glob("*.jsonl")]
    assert kept["audit"]["accesses"] == max(json.loads(line)["total"] for line in last)
    assert kept["audit"]["rate"] == 0.5
    capped, part = answer(str(out), "--rounds", "1", "--canaries", "300", *SURE)
    assert "audited: 1 of the 3 rounds" in capped.output
    assert part["audit"]["claimed"] < summary["epsilon"]


def test_a_run_of_a_broken_mechanism_is_refuted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = private_run(tmp_path / "run")
    halved(monkeypatch)
    done = run(str(out))
    assert done.exit_code == 1, done.output
    assert json.loads((out / "audit.json").read_text())["verdict"] == "refuted"


def test_what_a_run_does_not_promise_is_not_audited(tmp_path: Path) -> None:
    seeded = private_run(
        tmp_path / "seeded", **{"privacy.sigma": 1.0, "privacy.reproducible": True}
    )
    refused = run(str(seeded))
    assert isinstance(refused.exception, RequestError)
    assert "noise comes from the seed" in str(refused.exception)
    plain = tmp_path / "plain"
    fedstill.run("fedavg", out=plain, rounds=1, clients=2, workers=1, model="mlp")
    done, found = answer(str(plain), "--json")
    assert "it claims nothing" in done.output
    assert (found["refuted"], found["verdict"]) == (False, None)


def test_requests_that_cannot_be_answered(tmp_path: Path) -> None:
    out = private_run(tmp_path / "run")
    for words, reason in (
        ([str(out), "--epsilon", "2"], "whose configuration is audited as it is"),
        ([str(tmp_path)], "no run here"),
        (["fedavg", "--canaries", "3"], "--canaries = 3"),
        (["fedavg", "--epsilon", "-1"], "--epsilon"),
        (["scaffold"], "has no private form"),
        (["feddm", "--set", "method.initial=real"], "method.initial"),
    ):
        refused = run(*words)
        assert isinstance(refused.exception, RequestError), words
        assert reason in str(refused.exception)
