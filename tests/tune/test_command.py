"""The search as a user sees it on a terminal."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedstill.draw.console import Console
from fedstill.tune.progress import TrialBar, watcher_for
from fedstill.tune.search import FinishedTrial
from fedstill.tune.space import Candidate
from fedstill.tune.training import DEFAULT_TRAINING
from tests.waiting import FOREVER, heed_interrupts, wait_until


@pytest.mark.parametrize("live", [True, False])
def test_progress_shows_trial_epoch_accuracy_best_and_time_left(live: bool) -> None:
    candidate = Candidate({"name": "mlp", "width": 8}, replace(DEFAULT_TRAINING, augment="dsa"))
    with open(os.devnull, "w") as nowhere:
        console = Console(file=nowhere, record=True, force_terminal=live, width=160)
        watcher = watcher_for(console)
        watcher.epoch(3, 5, 40, 0.5)
        if isinstance(watcher, TrialBar):
            assert watcher.bar.tasks[0].fields["detail"] == "trial 3, epoch 5/40, accuracy 50.00%"
        watcher.finished(FinishedTrial(3, 4, 9, "done", 0.75, 0.8, candidate, 1.5))
        watcher.finished(FinishedTrial(4, 5, 9, "pruned", None, 0.8, candidate, 0.5))
        watcher.finished(
            FinishedTrial(5, 6, 9, "failed", None, 0.8, candidate, 0.5, "out of memory")
        )
        if isinstance(watcher, TrialBar):
            assert (watcher.bar.tasks[0].completed, watcher.bar.tasks[0].total) == (6, 9)
        watcher.stop()
        text = console.export_text()
    assert isinstance(watcher, TrialBar) == live
    settings = "mlp 8; rate 0.02 momentum 0.9 batch 64 epochs 40 step dsa"
    assert f"trial 3 (4/9)  accuracy 75.00%  best 80.00%  {settings}  1.5 s  left " in text
    assert "trial 4 (5/9)  pruned  best 80.00%" in text
    assert "out of memory" in text


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_leaves_a_resumable_study(run: Path, tmp_path: Path, workers: str) -> None:
    study = tmp_path / "study.journal"
    arguments = [sys.executable, "-m", "fedstill", "tune", str(run), "--study", str(study)]
    arguments += ["--workers", workers, "--search", "hyper", "--pruner", "none"]
    process = subprocess.Popen(
        [*arguments, "--trials", "500"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )

    def second_trial() -> bool:
        assert process.poll() is None, process.communicate()[1]
        return study.exists() and study.read_bytes().count(b'"state":1') > 1

    wait_until(second_trial, "the second trial")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=FOREVER)
    assert process.returncode == 130
    assert f"--study {study}" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    finished = study.read_bytes().count(b'"state":1')
    again = subprocess.run(
        [*arguments, "--trials", str(finished + 2)], capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stderr
    assert f"({finished + 2}/{finished + 2})" in again.stderr
    assert (tmp_path / "winner.toml").exists()
