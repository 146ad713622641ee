from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedstill.config import changed_keys, resolve
from fedstill.config.nested import read_toml
from fedstill.config.registry import build_model
from fedstill.errors import RequestError


def test_defaults_are_the_documented_ones() -> None:
    experiment = resolve({"method": "fedavg"})
    assert experiment.data.name == "digits"
    assert experiment.partition == "dirichlet:0.1"
    assert experiment.rounds == 20
    assert experiment.participation == 1.0
    assert experiment.model["name"] == "convnet-small"
    assert experiment.model["width"] == 32
    assert experiment.method["local_epochs"] == 1


def test_the_resolved_table_is_complete_and_resolves_to_itself(tmp_path: Path) -> None:
    experiment = resolve(
        {
            "method": {"name": "fedprox", "mu": 1},
            "model": {"name": "convnet", "depth": 2},
            "seed": 3,
        }
    )
    path = tmp_path / "config.toml"
    path.write_text(tomli_w.dumps(experiment.table))
    again = resolve(read_toml(path))
    assert again.table == experiment.table
    assert experiment.table["method"]["mu"] == 1.0
    assert experiment.table["model"]["width"] == 128
    assert experiment.table["engine"]["workers"] >= 1


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"data": 5}, "data: expected object, got int (it is 5)"),
        ({"start": True}, "start: expected"),
        ({}, "method: which one?"),
        ({"method": 3}, "method: expected object"),
        ({"method": "fedagv"}, "method: no method 'fedagv'; did you mean 'fedavg'"),
        (
            {"method": "fedavg", "model": "convet"},
            "model: no model 'convet'; did you mean 'convnet'",
        ),
        (
            {"method": "fedavg", "model": {"wdith": 3}},
            "model.wdith: no such setting; did you mean 'width'",
        ),
        ({"method": "fedavg", "model": {"width": 0}}, "model.width: expected int >= 1 (it is 0)"),
        ({"method": "fedavg", "rouns": 3}, "rouns: no such setting; did you mean 'rounds'"),
        ({"method": "fedavg", "rounds": 0}, "rounds: expected int >= 1 (it is 0)"),
        ({"method": "fedavg", "rounds": "ten"}, "rounds: expected int, got str (it is 'ten')"),
        ({"method": "fedavg", "rounds": 1.5}, "rounds: expected int, got float (it is 1.5)"),
        ({"method": "fedavg", "clients": -1}, "clients: expected int >= 1 (it is -1)"),
        ({"method": "fedavg", "participation": 0}, "participation: expected float > 0"),
        ({"method": "fedavg", "participation": 1.2}, "participation: expected float <= 1"),
        ({"method": "fedavg", "quorum": 2}, "quorum: expected float <= 1"),
        # Planning with such numbers would take for ever, or lose all digits.
        (
            {"method": "fedavg", "privacy": {"sigma": 1e-9}},
            "privacy.sigma: expected float >= 0.001",
        ),
        (
            {"method": "fedavg", "privacy": {"sigma": 1e9}},
            "privacy.sigma: expected float <= 1000000.0",
        ),
        (
            {"method": "fedavg", "privacy": {"epsilon": 3.0, "sampling_rate": 1e-12}},
            "privacy.sampling_rate: expected float >= 1e-09",
        ),
        (
            {"method": "fedavg", "privacy": {"epsilon": 3.0, "clip": 1e-9}},
            "privacy.clip: expected float >= 1e-06",
        ),
        ({"method": "fedavg", "seed": -1}, "seed: expected int >= 0"),
        (
            {"method": {"name": "fedavg", "learning_rate": 0}},
            "method.learning_rate: expected float > 0",
        ),
        (
            {"method": {"name": "fedavg", "lerning_rate": 1}},
            "method.lerning_rate: no such setting; did you mean 'learning_rate'",
        ),
        (
            {"method": {"name": "fedavg", "weighting": "equal"}},
            "method.weighting: expected one of 'records', 'uniform' (it is 'equal')",
        ),
        ({"method": "fedavg", "partition": "dirichlet:0"}, "partition"),
        ({"method": "fedavg", "partition": "dirichlet:-1"}, "partition"),
        ({"method": "fedavg", "partition": "dirichlt:1"}, "did you mean 'dirichlet"),
        ({"method": "fedavg", "wire": {"up": "float61"}}, "wire.up: no codec 'float61'"),
        ({"method": "fedavg", "wire": {"up": 4}}, "wire.up: expected one of 'auto', 'float32',"),
        ({"method": "fedavg", "wire": {"down": 4}}, "wire.down: expected one of 'float32',"),
        ({"method": "fedavg", "wire": {"sideways": "float32"}}, "wire.sideways: no such setting"),
        (
            {"method": "fedavg", "engine": "flour"},
            "engine.name: expected one of 'local', 'flower' (it is 'flour')",
        ),
        ({"method": "fedavg", "device": "tpu7"}, "device: 'tpu7' cannot be used"),
        ({"method": "fedavg", "device": "meta"}, "device: 'meta' cannot be used"),
        ({"method": "fedavg", "model": {"name": 3}}, "model.name: expected str (it is 3)"),
        ({"method": {"name": 3}}, "method.name: expected str (it is 3)"),
        (
            {"method": {"name": "fedavg", "learning_rate": float("inf")}},
            "method.learning_rate: expected a finite number (it is inf)",
        ),
        ({"method": "fedavg", "participation": float("nan")}, "participation: expected a finite"),
        ({"method": "fedavg", "data": {"nmae": "mnist"}}, "data.nmae: no such setting"),
    ],
)
def test_wrong_requests_are_refused_by_name(request_: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        build_model(resolve(request_).model, (1, 8, 8), 10)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_what_matters_to_the_result_counts_as_changed() -> None:
    base = {"rounds": 3, "engine": {"workers": 1, "threads": 1}, "data": {"name": "x", "dir": "a"}}
    same = {"rounds": 3, "engine": {"workers": 2, "threads": 1}, "data": {"name": "x", "dir": "b"}}
    assert changed_keys(base, same) == []
    other = {"rounds": 4, "engine": {"workers": 1, "threads": 2}, "data": {"name": "x"}}
    assert changed_keys(base, other) == ["engine.threads", "rounds"]


def test_a_private_rate_comes_with_its_optimiser_or_not_at_all() -> None:
    """Adam, the private default, at SGD's rate of 1 destroys the images."""

    def settings(**given: Any) -> tuple[str, float]:
        method = {"name": "feddm", **given}
        resolved = resolve({"method": method, "privacy": {"sigma": 1.0}}).method
        return resolved["pixel_optimiser"], resolved["pixel_learning_rate"]

    assert settings() == ("adam", 0.1)
    assert settings(pixel_optimiser="adam") == ("adam", 0.1)
    assert settings(pixel_optimiser="sgd") == ("sgd", 1.0)
    assert settings(pixel_optimiser="sgd", pixel_learning_rate=2.0) == ("sgd", 2.0)
    with pytest.raises(RequestError, match=r"pixel_learning_rate: what 1\.0 .*pixel_optimiser"):
        settings(pixel_learning_rate=1.0)
