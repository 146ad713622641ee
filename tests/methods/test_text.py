"""Methods without code for text learn it; those that distil images refuse it."""

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.errors import RequestError
from fedstill.methods import METHODS
from fedstill.testing import CHECKS, on, toy_run, toy_text

# Methods that send weights or gradients, whole or in part: none of them knows what a record is.
GENERAL = ("central", "fedavg", "fedprox", "fedsgd", "fednova", "scaffold", "random-mask")
SMALL: dict[str, dict[str, Any]] = {"fedsynth": {"batches": 1, "iterations": 1}}
SPEECH = "".join(f"the {a} sees a {b}. " for a in ("cat", "cow") for b in ("sun", "sea", "moon"))


@pytest.fixture
def plays(tmp_path: Path) -> Path:
    folder = tmp_path / "shakespeare"
    folder.mkdir()
    (folder / "input.txt").write_text(f"ANN:\n{SPEECH * 2}\n\nBEN:\n{SPEECH}\n")
    return tmp_path


@pytest.mark.parametrize("check", CHECKS.values(), ids=list(CHECKS))
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "random-mask", "fedsynth"])
def test_conforms_on_text(name: str, check: Any) -> None:
    with on(toy_text):
        check(METHODS[name](**SMALL.get(name, {})))


@pytest.mark.parametrize("name", GENERAL)
def test_every_general_method_learns_text(name: str, tmp_path: Path) -> None:
    with on(toy_text):
        federation = toy_run(METHODS[name](), tmp_path, rounds=2)
    first, last = (metrics.loss for metrics in federation.history)
    assert first is not None
    assert last is not None
    assert last < first < math.log(97) + 0.5
    assert set(federation.history[-1].details) >= {"accuracy/ANN", "accuracy/BEN"}


def test_a_run_on_shakespeare_needs_no_further_options(plays: Path) -> None:
    result = fedstill.run(
        "fedavg",
        data="shakespeare",
        data_dir=plays,
        rounds=2,
        workers=1,
        out=plays / "run",
        set={"data.sequence_length": 10, "model.width": 8, "method.learning_rate": 0.5},
    )
    config = tomllib.loads((plays / "run" / "config.toml").read_text())
    assert (config["partition"], config["model"]["name"]) == ("natural", "gru")
    assert result.summary.clients == 2
    assert result.metrics[1].loss is not None
    assert result.metrics[0].loss is not None
    assert result.metrics[1].loss < result.metrics[0].loss


@pytest.mark.parametrize("name", ["feddm", "feddualmatch", "real"])
def test_methods_that_distil_images_refuse_text(name: str, plays: Path) -> None:
    with pytest.raises(RequestError, match="it distils images of every class"):
        fedstill.run(
            name,
            data="shakespeare",
            data_dir=plays,
            workers=1,
            out=plays / "run",
            set={"data.sequence_length": 10},
        )
    assert not (plays / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "mlp"}, "'mlp' cannot read 'shakespeare': its records are text; use gru"),
        ({"model": "convnet"}, "a ConvNet needs images"),
        ({"partition": "dirichlet:0.1"}, "a text has no class of its own"),
        ({"data": "digits", "data_dir": None, "model": "gru"}, "a language model needs text"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    options: dict[str, Any], message: str, plays: Path
) -> None:
    request: dict[str, Any] = {"data": "shakespeare", "data_dir": plays, **options}
    sequence = {"data.sequence_length": 10} if request["data"] == "shakespeare" else {}
    with pytest.raises(RequestError, match=message):
        fedstill.run("fedavg", workers=1, out=plays / "run", set=sequence, **request)
    assert not (plays / "run").exists()


def test_flat_numbers_are_no_text(tmp_path: Path) -> None:
    data = fedstill.arrays([[0.0, 1.0]] * 6, [0, 1] * 3, [[0.0, 1.0]], [0])
    with pytest.raises(RequestError, match="its records are not text; use mlp"):
        fedstill.run(
            "fedavg", data=data, model="gru", partition="iid", clients=2, out=tmp_path / "run"
        )


def test_accuracy_by_domain_is_in_the_metrics(tmp_path: Path) -> None:
    names = ("plain", "print")
    result = fedstill.run(
        "fedsgd",
        data="digit-domains",
        rounds=2,
        workers=1,
        out=tmp_path / "run",
        set={"eval_every": 2, "model.width": 4, "data.image_size": 8, "data.domains": names},
    )
    assert (result.summary.clients, result.summary.partition) == (2, "natural")
    assert result.metrics[0].details == {}  # no evaluation, no domains
    details = result.metrics[1].details
    assert list(details) == ["accuracy/plain", "accuracy/print"]
    assert result.summary.accuracy == pytest.approx(sum(details.values()) / 2)
