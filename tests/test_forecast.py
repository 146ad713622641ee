"""The forecast of a run against what it then costs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstill
from fedstill.build import build
from fedstill.forecast import forecast
from fedstill.methods import METHODS
from fedstill.runs.forecast import Forecast
from fedstill.testing import TOY_PRIVACY, toy_experiment, toy_run
from tests.methods.small import SMALL


@pytest.mark.parametrize("name", METHODS)
def test_a_round_costs_what_was_forecast(name: str, tmp_path: Path) -> None:
    method = METHODS[name](**SMALL.get(name, {}))
    expected = forecast(toy_experiment(method))
    first = toy_run(method, tmp_path, rounds=1).history[0]
    assert not expected.at_most
    slack = 100 * expected.clients  # numbers in the header
    assert first.up_bytes == pytest.approx(expected.up_bytes, rel=0.01, abs=slack)
    assert first.down_bytes == pytest.approx(expected.down_bytes, rel=0.01, abs=slack)
    if name == "fedavg":
        assert expected.up_bytes == expected.fedavg_up_bytes
        assert expected.down_bytes == expected.fedavg_down_bytes


def test_codecs_and_public_classes_count(tmp_path: Path) -> None:
    plain = build({"method": "feddm", "clients": 4, "wire": {"up": "float32"}})
    small = build({"method": "feddm", "clients": 4, "wire": {"up": "uint8"}})
    zstd = build({"method": "feddm", "clients": 4, "wire": {"up": "uint8+zstd"}})
    assert forecast(small).up_bytes < 0.35 * forecast(plain).up_bytes  # labels stay as they are
    assert forecast(zstd).at_most
    assert not forecast(small).at_most
    bits = build({"method": "feddm", "clients": 4})  # for images alone: FedAvg's stay as they are
    assert forecast(bits).fedavg_up_bytes == forecast(plain).fedavg_up_bytes
    method = METHODS["feddm"](**{**SMALL["feddm"], "initial": "noise"})
    private = forecast(toy_experiment(method, privacy=TOY_PRIVACY))
    options: dict[str, Any] = {"rounds": 1, "privacy": TOY_PRIVACY}
    first = toy_run(method, tmp_path, **options).history[0]
    assert first.up_bytes == pytest.approx(private.up_bytes, rel=0.01, abs=400)


def test_a_coder_is_forecast_by_what_it_packs() -> None:
    plain, coded = (
        forecast(build({"method": "feddm", "clients": 4, "wire": {"up": codec}}))
        for codec in ("bits4", "bits4+context")
    )
    assert (coded.up_bytes, coded.at_most) == (plain.up_bytes, True)


def test_a_centralised_run_sends_nothing() -> None:
    cost = forecast(build({"method": "central"}))
    assert cost.up_bytes == cost.down_bytes == cost.fedavg_up_bytes == 0
    assert cost.memory_bytes > 0


def large_images(side: int) -> fedstill.Dataset:
    x = np.random.default_rng(0).integers(0, 256, (12, 3, side, side), dtype=np.uint8)
    return fedstill.arrays(x, np.arange(12) % 4, x[:4], np.arange(4))


class Seen(fedstill.Observer):
    def __init__(self) -> None:
        self.forecasts: list[Forecast] = []

    def forecast(self, forecast: Forecast) -> None:
        self.forecasts.append(forecast)


def test_images_dearer_than_weights_are_warned_about_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = Seen()
    fast = {"method.iterations": 1, "method.server_epochs": 1, "wire.up": "float32"}
    options: dict[str, Any] = {"rounds": 1, "clients": 2, "partition": "iid", "workers": 1}
    result = fedstill.run(
        "feddm", data=large_images(128), out=tmp_path / "a", observer=seen, set=fast, **options
    )
    (cost,) = seen.forecasts
    assert result.summary.up_bytes == pytest.approx(cost.up_bytes, rel=0.01)
    assert cost.warning is not None
    assert "times as many bytes as the weights" in cost.warning
    assert "wire.up = 'auto'" in cost.warning
    assert "method.images_per_class = 1 instead of 10" in cost.warning
    assert "data.image_size" in cost.warning
    said = capsys.readouterr().err
    assert "per round: 15.7 MB up" in said
    assert "warning: the images cost" in said
    assert said.index("per round:") < said.index("round 1/1")
    kept = json.loads((tmp_path / "a" / "forecast.json").read_text())
    assert kept["seconds_per_round"] == pytest.approx(result.metrics[0].seconds)
    recorded = replace(cost, seconds_per_round=kept["seconds_per_round"])
    assert Forecast(**kept) == recorded
    assert forecast(build({"method": "feddm"})).warning is None
    bits = build({"method": "feddm", "clients": 2, "partition": "iid"}, dataset=large_images(128))
    few = forecast(bits)
    assert few.at_most
    assert few.fedavg_up_bytes == cost.fedavg_up_bytes  # FedAvg sends floats
    assert few.up_bytes < 0.3 * cost.up_bytes
    assert few.warning is not None
    assert "wire.up = 'bits4+zstd'" in few.warning


@pytest.mark.parametrize(("side", "model"), [(128, "convnet-small"), (224, "resnet18")])
def test_memory_grows_with_what_is_computed(side: int, model: str) -> None:
    request = {"method": "fedavg", "model": model, "engine": {"workers": 1}, "clients": 2}
    data = large_images(side)
    large = forecast(
        build({**request, "data": {"name": "arrays"}, "partition": "iid"}, dataset=data)
    )
    assert large.memory_bytes > forecast(build(request)).memory_bytes + data.train.inputs.nbytes
    assert large.memory_bytes < 4e9  # chunks are small enough
