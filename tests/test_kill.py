"""SIGKILL at random moments, for real: nothing is lost, and no bit of the result changes."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.waiting import FOREVER

KILLS = 15
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
    begun = time.monotonic()
    assert whole.wait(timeout=FOREVER) == 0, whole.communicate()[1]
    length = time.monotonic() - begun

    moments = random.Random(workers)
    for number in range(KILLS):
        process = start("killed", *_resume(tmp_path))
        try:
            # From before the first byte of output to the very end.
            process.wait(timeout=moments.uniform(0.02, length))
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


def _resume(folder: Path) -> list[str]:
    return ["--resume"] if (folder / "killed" / "config.toml").exists() else []


def _model(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()
