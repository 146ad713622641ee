"""``[faults]``: answers are lost, late, crashed or corrupt on purpose, the same in every engine."""

from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.config import resolve
from fedstill.errors import Interrupted, RequestError, RunError
from fedstill.observe.observer import Observer
from fedstill.result import Result
from fedstill.runs.metrics import RoundMetrics

FAST: dict[str, Any] = {"rounds": 4, "clients": 6, "model": "mlp", "partition": "iid"}


def run(out: Path, settings: dict[str, Any], **options: Any) -> Result:
    return fedstill.run(
        "fedavg", out=out, set={"quorum": 0.1, **settings}, **{"workers": 1, **FAST, **options}
    )


def model(result: Result) -> bytes:
    return (result.folder / "model.safetensors").read_bytes()


def failures(result: Result) -> list[dict[int, str]]:
    return [metrics.failed for metrics in result.metrics]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"faults.lost": 0.4}, "faults: its answer was lost"),
        ({"faults.crashed": 0.4}, "faults: the client crashed"),
        (
            {"faults.slow": 0.4, "faults.slow_seconds": 9.0, "engine.round_timeout": 5.0},
            "faults: no answer within 5 s",
        ),
    ],
)
def test_a_share_of_the_answers_is_missing(
    tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    result = run(tmp_path / "run", settings)
    hit = [client for failed in failures(result) for client in failed]
    assert {text for failed in failures(result) for text in failed.values()} == {reason}
    assert 3 <= len(hit) <= 17  # of 24 at a share of 0.4: all but one seed in a thousand
    for metrics in result.metrics:
        assert sorted([*metrics.clients, *metrics.failed]) == list(range(6))
        assert set(metrics.uploads) == set(range(6))
        assert all(metrics.uploads[client] == 0 for client in metrics.failed)
    assert result.summary.status == "done"


def test_faults_have_their_own_seed_and_the_rest_of_the_run_its_own(tmp_path: Path) -> None:
    lost = {"faults.lost": 0.4}
    first = run(tmp_path / "a", lost)
    assert failures(run(tmp_path / "b", lost)) == failures(first)
    assert failures(run(tmp_path / "c", lost, seed=5)) == failures(first)
    assert failures(run(tmp_path / "d", lost | {"faults.seed": 5})) != failures(first)


def test_a_share_of_zero_changes_no_bit(tmp_path: Path) -> None:
    without, zero = run(tmp_path / "a", {}), run(tmp_path / "b", {"faults.lost": 0.0})
    assert model(without) == model(zero)


def test_all_lost_stops_the_run_below_its_quorum(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"0 of 6 clients answered.*its answer was lost"):
        run(tmp_path / "run", {"faults.lost": 1.0})


def test_corrupt_messages_are_refused_or_change_the_result(tmp_path: Path) -> None:
    result = run(tmp_path / "run", {"faults.corrupt": 0.5})
    refused = [text for failed in failures(result) for text in failed.values()]
    assert all(text.startswith("refused: ") for text in refused)
    assert model(result) != model(run(tmp_path / "clean", {}))
    kept = list((tmp_path / "run" / "refused").glob("*.bin")) if refused else []
    assert len(kept) == len(refused)


@pytest.mark.slow
def test_worker_processes_have_the_same_faults_and_bits(tmp_path: Path) -> None:
    settings = {
        "faults.lost": 0.2,
        "faults.crashed": 0.2,
        "faults.corrupt": 0.2,
        "faults.slow": 0.2,
        "engine.round_timeout": 1.0,
    }
    here, workers = run(tmp_path / "a", settings), run(tmp_path / "b", settings, workers=2)
    assert failures(here) == failures(workers)
    assert any(failures(here))
    assert model(here) == model(workers)


def test_a_resumed_run_has_the_faults_of_an_uninterrupted_one(tmp_path: Path) -> None:
    class Stop(Observer):
        def round_done(self, metrics: RoundMetrics) -> None:
            if metrics.round == 2:
                raise KeyboardInterrupt

    whole = run(tmp_path / "whole", {"faults.lost": 0.4})
    with pytest.raises(Interrupted):
        run(tmp_path / "parts", {"faults.lost": 0.4}, observer=Stop())
    resumed = fedstill.run(out=tmp_path / "parts", resume=True)
    assert failures(resumed) == failures(whole)
    assert model(resumed) == model(whole)


def test_the_user_is_told_that_faults_are_on(tmp_path: Path) -> None:
    notes: list[str] = []

    class Listener(Observer):
        def note(self, text: str) -> None:
            notes.append(text)

    run(tmp_path / "run", {"faults.lost": 0.25}, observer=Listener())
    assert notes == ["faults on purpose: 25% of answers lost, from faults.seed 0"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"faults": {"lost": 0.3}, "engine": "flower"}, "faults: only the local engine"),
        ({"faults": {"slow": 0.3}}, r"faults\.slow: a client of 60 s is late only where"),
        (
            {"faults": {"slow": 0.3}, "engine": {"round_timeout": 60.0}},
            "set engine.round_timeout, or raise faults.slow_seconds",
        ),
        ({"faults": {"lost": 1.5}}, r"faults\.lost"),
        ({"faults": {"dropped": 0.5}}, r"faults\.dropped"),
    ],
)
def test_faults_that_cannot_be_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        resolve({"method": "fedavg", **settings})


def test_the_timeout_decides_the_result_where_clients_are_slow(tmp_path: Path) -> None:
    run(tmp_path / "run", {"faults.slow": 0.2, "engine.round_timeout": 5.0})
    with pytest.raises(RequestError, match=r"other settings: engine\.round_timeout"):
        fedstill.run(out=tmp_path / "run", resume=True, set={"engine.round_timeout": 6.0})
