"""Trackers receive what happens, and change nothing."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.errors import RequestError
from fedstill.observe.observer import Observer
from fedstill.observe.trackers import Observers, numbers, tracker
from fedstill.runs.metrics import RoundMetrics

FAST: dict[str, Any] = {"rounds": 2, "clients": 2, "model": "mlp", "workers": 1}


class Calls:
    """A stand-in for a package: records the calls."""

    def __init__(self) -> None:
        self.made: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> "Calls":
            self.made.append((name, arguments, named))
            return self

        return call

    def of(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(arguments, named) for called, arguments, named in self.made if called == name]


def test_mlflow_gets_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    monkeypatch.setitem(sys.modules, "mlflow", calls)
    fedstill.run("fedavg", out=tmp_path / "plain", **FAST)
    tracked = fedstill.run("fedavg", out=tmp_path / "run", observer=tracker("mlflow"), **FAST)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "run")]
    assert models[0] == models[1]
    assert calls.of("start_run") == [((), {"run_name": "run"})]
    assert calls.of("log_params")[0][0][0]["method.name"] == "fedavg"
    logged = calls.of("log_metrics")
    assert [named["step"] for _, named in logged] == [1, 2]
    assert logged[-1][0][0]["accuracy"] == tracked.summary.accuracy
    assert len(calls.of("end_run")) == 1


def test_tensorboard_gets_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    stand_in = types.ModuleType("torch.utils.tensorboard")
    stand_in.SummaryWriter = calls.SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorboard", calls)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    result = fedstill.run("fedavg", out=tmp_path / "run", observer=tracker("tensorboard"), **FAST)
    assert calls.of("SummaryWriter") == [((str(tmp_path / "run/tensorboard"),), {"purge_step": 1})]
    scalars = {(name, step): value for (name, value, step), _ in calls.of("add_scalar")}
    assert scalars["accuracy", 2] == result.summary.accuracy
    assert ("up_bytes", 1) in scalars


@pytest.mark.parametrize("name", ["mlflow", "tensorboard"])
def test_a_missing_package_is_named_with_its_remedy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RequestError, match=rf"--track {name}: .*pip install 'fedstill\[{name}\]'"):
        tracker(name)
    with pytest.raises(RequestError, match="did you mean 'tensorboard'"):
        tracker("tensorbord")


def test_all_watchers_are_told_everything() -> None:
    a, b = Calls(), Calls()
    both = Observers([a], [b])  # type: ignore[list-item]
    for name in (n for n in vars(Observer) if not n.startswith("_")):
        arguments = tuple(range(getattr(Observer, name).__code__.co_argcount - 1))
        getattr(both, name)(*arguments)
        assert a.made[-1] == b.made[-1] == (name, arguments, {})


def test_a_tracker_that_fails_is_left_behind() -> None:
    class Broken(Observer):
        def round_started(self, round: int, clients: list[int]) -> None:
            raise OSError("no route to host")

    watcher = Calls()
    both = Observers([watcher], [Broken()])  # type: ignore[list-item]
    both.round_started(1, [0])
    both.round_started(2, [0])
    assert [arguments for arguments, _ in watcher.of("round_started")] == [(1, [0]), (2, [0])]
    assert watcher.of("note") == [
        (("Broken failed and gets no more metrics: no route to host",), {})
    ]


def test_what_was_not_measured_is_left_out() -> None:
    metrics = RoundMetrics(1, None, None, 5, 6, 0.5, None, [0], {1: "x"}, {"radius": 2.0})
    assert numbers(metrics) == {
        "up_bytes": 5.0,
        "down_bytes": 6.0,
        "seconds": 0.5,
        "clients": 1.0,
        "failed": 1.0,
        "details/radius": 2.0,
    }
