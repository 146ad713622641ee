"""SIGKILL at random moments, for real: nothing is lost, and no bit of the result changes."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

KILLS = 12
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
        words = ["--workers", workers, "--out", folder, *more]
        return subprocess.Popen([*COMMAND, *words], cwd=tmp_path, stderr=subprocess.PIPE)

    whole = start("whole")
    begun = time.monotonic()
    assert whole.wait(timeout=300) == 0, whole.communicate()[1]
    length = time.monotonic() - begun

    moments = random.Random(workers)
    kills = 0
    for attempt in range(200):
        begun_already = (tmp_path / "killed" / "config.toml").exists()
        process = start("killed", *(["--resume"] if begun_already else []))
        try:
            # From before the first byte of output to a good part of the way.
            code = process.wait(timeout=moments.uniform(0.02, length / 2))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
            continue
        _, errors = process.communicate()
        assert code == 0, errors.decode()
        if kills >= KILLS:
            break
        # It got through before we had killed it often enough: once more from the beginning.
        assert _model(tmp_path / "killed") == _model(tmp_path / "whole"), f"attempt {attempt}"
        (tmp_path / "killed").rename(tmp_path / f"finished-{attempt}")
    assert kills >= KILLS
    assert _model(tmp_path / "killed") == _model(tmp_path / "whole")
    rounds = (tmp_path / "killed" / "metrics.jsonl").read_text().count("\n")
    assert rounds == 60


def _model(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()
