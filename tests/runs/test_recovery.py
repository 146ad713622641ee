"""What a kill or a fault of the disk leaves in a run folder, and what a resume makes of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.errors import Interrupted
from fedstill.observe.observer import Observer
from fedstill.runs.metrics import RoundMetrics

FAST: dict[str, Any] = {"rounds": 4, "workers": 1, "clients": 3, "model": "mlp"}


class Stop(Observer):
    """Interrupts after round 3, and listens."""

    def __init__(self, round: int = 0) -> None:
        self.round, self.notes = round, list[str]()

    def note(self, text: str) -> None:
        self.notes.append(text)

    def round_done(self, metrics: RoundMetrics) -> None:
        if metrics.round == self.round:
            raise KeyboardInterrupt


def torn(lines: list[bytes]) -> list[bytes]:
    return [*lines[:-1], lines[-1][: len(lines[-1]) // 2]]


def gone(lines: list[bytes]) -> list[bytes]:
    return lines[:-1]


def zeros(lines: list[bytes]) -> list[bytes]:
    """What some file systems show after a loss of power."""
    return [*lines[:-1], b"\0" * len(lines[-1])]


def two_torn(lines: list[bytes]) -> list[bytes]:
    return [*lines[:-2], lines[-2][:9], lines[-1][:9]]


def binary(lines: list[bytes]) -> list[bytes]:
    return [*lines[:-1], b"\xff\xfe" + lines[-1][2:]]


@pytest.mark.parametrize("damage", [torn, gone, zeros, two_torn, binary])
def test_totals_stay_right_when_the_last_line_of_the_metrics_is_damaged(
    tmp_path: Path, damage: Callable[[list[bytes]], list[bytes]]
) -> None:
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        fedstill.run("fedavg", out=out, observer=Stop(3), **FAST)
    path = out / "metrics.jsonl"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    before = json.loads((out / "summary.json").read_bytes())
    path.write_bytes(b"".join(damage(lines)))
    observer = Stop()
    result = fedstill.run(out=out, resume=True, observer=observer)
    assert observer.notes == []
    assert path.read_bytes().startswith(whole)
    assert [m.round for m in result.metrics] == [1, 2, 3, 4]
    last = result.metrics[-1]
    assert result.summary.up_bytes == before["up_bytes"] + last.up_bytes
    assert result.summary.seconds == pytest.approx(before["seconds"] + last.seconds)
    assert result.summary.best_accuracy == max(m.accuracy or 0 for m in result.metrics)


def test_a_finished_run_recovers_its_last_line_too(tmp_path: Path) -> None:
    first = fedstill.run("fedavg", out=tmp_path / "run", **FAST)
    path = tmp_path / "run" / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    again = fedstill.run(out=tmp_path / "run", resume=True)
    assert path.read_bytes() == whole
    assert again.summary == first.summary


def test_what_cannot_be_recovered_is_said(tmp_path: Path) -> None:
    fedstill.run("fedavg", out=tmp_path / "run", **FAST)
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_bytes(b"")
    observer = Stop()
    again = fedstill.run(out=tmp_path / "run", resume=True, observer=observer)
    assert [m.round for m in again.metrics] == [3, 4]  # the two checkpoints that are kept
    said = "metrics.jsonl has no line for round 1 and 1 others: the totals leave them out"
    assert observer.notes == [said]


def test_temporary_files_of_killed_runs_are_swept_on_resume(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        fedstill.run("feddm", out=out, observer=Stop(1), **{**FAST, "rounds": 2})
    places = [out, out / "checkpoint", out / "synthetic", out / "refused"]
    for place in places:
        place.mkdir(exist_ok=True)
        (place / ".model.safetensors.ab12cd_9.tmp").write_bytes(b"half")
    (out / ".workers").mkdir()
    (out / ".workers" / "data.safetensors").write_bytes(b"old")
    kept = out / "synthetic" / "notes.tmp"
    kept.write_bytes(b"the user's")
    fedstill.run(out=out, resume=True)
    assert [path for place in places for path in place.glob(".*.tmp")] == []
    assert not (out / ".workers").exists()
    assert kept.exists()


def test_a_new_run_sweeps_what_one_left_that_was_killed_before_it_existed(tmp_path: Path) -> None:
    left = tmp_path / "run" / ".partition.safetensors.ab12cd_9.tmp"
    left.parent.mkdir()
    left.write_bytes(b"half")
    fedstill.run("fedavg", out=tmp_path / "run", **{**FAST, "rounds": 1})
    assert not left.exists()
