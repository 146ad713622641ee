"""A linear layer on fixed features: the run maps every record once, and the result is the same."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedstill
from fedstill.build import build
from fedstill.data import DataSettings, load
from fedstill.engine.flower.codes import Refusal
from fedstill.engine.flower.terms import NodeTerms
from fedstill.errors import RequestError
from fedstill.steps.scores import score
from fedstill.types import Params

DIGITS = {"method": "fedavg", "features": "orientation", "rounds": 2, "clients": 3}


def test_a_run_on_vectors_is_a_run_of_the_whole_network(tmp_path: Path) -> None:
    """Accuracy by the head on mapped records, and by the whole network on images."""
    result = fedstill.run("fedavg", features="orientation", rounds=2, clients=3, out=tmp_path / "r")
    built = build(DIGITS)
    params: Params = result.params
    whole = build({**DIGITS, "method": "fedavg"})
    x = whole.dataset.scaling(whole.dataset.test.inputs)
    right = whole.model.apply(params, x).argmax(1) == whole.dataset.test.labels
    assert result.summary.accuracy == pytest.approx(float(right.float().mean()), abs=1e-6)
    assert score(built.task, params, built.test).accuracy == result.summary.accuracy
    scored = fedstill.evaluate(tmp_path / "r").model
    assert scored is not None
    assert scored.networks[0].accuracy == pytest.approx(result.summary.accuracy, abs=1e-6)


def test_worker_processes_get_the_vectors(tmp_path: Path) -> None:
    """Two processes give the bits of one."""
    one, two = (
        fedstill.run(
            "fedavg", features="wavelets", rounds=1, clients=3, workers=n, out=tmp_path / str(n)
        )
        for n in (1, 2)
    )
    assert one.summary.experiment_sha256 == two.summary.experiment_sha256
    assert (tmp_path / "1/model.safetensors").read_bytes() == (
        tmp_path / "2/model.safetensors"
    ).read_bytes()


def test_a_frozen_network_from_python(tmp_path: Path) -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 40))
    before = [p.clone() for p in backbone.parameters()]
    result = fedstill.run("analytic", features=backbone, clients=3, out=tmp_path / "r")
    assert result.summary.accuracy is not None
    assert result.summary.accuracy > 0.85
    assert all(map(torch.equal, before, backbone.parameters()))
    data = load(DataSettings())
    images = (data.test.inputs[:50].float() / 255).numpy()
    found = np.asarray(result.predict(images))
    assert float(np.mean(found == data.test.labels[:50].numpy())) > 0.8


def test_features_belong_to_the_linear_model() -> None:
    with pytest.raises(RequestError, match="features: a feature map belongs to model 'linear'"):
        build({"method": "fedavg", "model": "mlp", "features": "pixels"})
    built = build({"method": "analytic", "model": {"projection": 20}})
    assert built.experiment.model["name"] == "linear"
    assert built.task.shape == (20,)
    assert built.experiment.rounds == 1


def test_a_node_refuses_a_feature_map_that_it_did_not_allow() -> None:
    config = {"method": {"name": "fedavg"}, "model": {"name": "linear", "feature_map": "os:getcwd"}}
    with pytest.raises(Refusal, match=r"model\.feature_map = 'os:getcwd'"):
        NodeTerms.of({"partition-id": 0}).check_code(config)
    NodeTerms.of({"partition-id": 0, "allow": "os:getcwd"}).check_code(config)
