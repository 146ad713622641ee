"""SIGKILL at random moments, for real: nothing is lost, and no bit of the result changes."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.waiting import FOREVER, wait_until

KILLS = 9
COMMAND = [
    sys.executable, "-m", "fedstill", "run", "scaffold", "--model", "mlp", "--clients", "4",
    "--participation", "0.5", "--rounds", "60", "--set", "model.width=32",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_killed_at_any_moment_and_resumed_ends_with_the_same_bits(
    tmp_path: Path, workers: str
) -> None:
    def start(folder: str, *more: str) -> "subprocess.Popen[bytes]":
        options = ["--workers", workers, "--out", folder, *more]
        return subprocess.Popen([*COMMAND, *options], cwd=tmp_path, stderr=subprocess.PIPE)

    whole = start("whole")
    started = time.monotonic()
    _wait_for_session(tmp_path / "whole", 1, whole)
    begun = time.monotonic()
    assert whole.wait(timeout=FOREVER) == 0, whole.communicate()[1]
    length = time.monotonic() - begun

    moments = random.Random(workers)
    for number in range(KILLS):
        sessions = _sessions(tmp_path / "killed")
        process = start("killed", *_resume(tmp_path))
        try:
            if number % 3 == 0:  # from before the first byte of output
                process.wait(timeout=moments.uniform(0.02, begun - started))
            else:  # while it works, up to the very end: starting takes longer than working
                _wait_for_session(tmp_path / "killed", sessions + 1, process)
                process.wait(timeout=moments.uniform(0.0, length))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            continue
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
        # It finished before it could be killed: start again from the beginning.
        assert _model(tmp_path / "killed") == _model(tmp_path / "whole")
        (tmp_path / "killed").rename(tmp_path / f"finished-{number}")
    last = start("killed", *_resume(tmp_path))
    assert last.wait(timeout=FOREVER) == 0, last.communicate()[1]
    assert _model(tmp_path / "killed") == _model(tmp_path / "whole")
    lines = (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(1, 61))


def _sessions(folder: Path) -> int:
    """How often the run was begun or resumed."""
    path = folder / "sessions.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _wait_for_session(folder: Path, number: int, process: "subprocess.Popen[bytes]") -> None:
    """Return once the run works on its rounds, or has ended."""
    wait_until(lambda: _sessions(folder) >= number or process.poll() is not None, "a session", 0.01)


def _resume(folder: Path) -> list[str]:
    return ["--resume"] if (folder / "killed" / "config.toml").exists() else []


def _model(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()
