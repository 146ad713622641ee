"""The commands as a user runs them: real processes, exit codes, one-line errors."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedstill.cli import app
from fedstill.draw.console import Console
from fedstill.draw.numbers import duration, in_bytes, in_percent, in_time
from fedstill.errors import RequestError
from fedstill.observe.progress import LiveProgress, PlainProgress
from fedstill.runs.metrics import RoundMetrics, Summary
from tests.waiting import FOREVER, heed_interrupts, wait_until

RUNNER = CliRunner()


def fedstill(
    *arguments: str, cwd: Path, timeout: float = FOREVER
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "fedstill", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


FAST = ("--model", "mlp", "--rounds", "2", "--clients", "3", "--workers", "1")


def test_run_and_its_json(tmp_path: Path) -> None:
    done = fedstill("run", "fedavg", *FAST, "--json", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert json.loads(lines[-1]) == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "run folder: run" in lines
    assert "report: run/report.html" in lines
    assert "round 2/2  accuracy " in done.stderr
    assert "\x1b" not in done.stdout + done.stderr  # plain lines when not a terminal


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "fedagv"), "no method 'fedagv'; did you mean 'fedavg'"),
        (("run",), "method: which one?"),
        (("run", "fedavg", "--set", "method.mu=1"), "method.mu: no such setting"),
        (("run", "fedavg", "--data", "mnist"), "--data-dir"),
        (("run", "fedavg", "--data", "mnist", "--data-dir", "nowhere"), "nowhere"),
        (("run", "fedavg", "--partition", "dirichlet:-1"), "dirichlet:-1"),
        (("run", "fedavg", "--clients", "99999"), "99999"),
        (("run", "fedavg", "--resume"), "name the run's folder with --out"),
        (("run", "fedavg", "--config", "none.toml"), "none.toml: cannot be read"),
        (("partition", "--data", "nothing-like-it"), "nothing-like-it"),
        (("list", "metods"), "did you mean 'methods'"),
        (("run", "fedavg", "--bogus"), "No such option"),
        (("run", "fedavg", "--rounds", "x"), "'--rounds': 'x' is not a valid integer"),
        (("rnu",), "No such command 'rnu'"),
        (("show", "nowhere"), "nowhere: no such folder"),
        (("report", "nowhere"), "nowhere: no such folder"),
        (("report", ".", "--port", "80"), "--port: only used with --serve"),
        (("report", ".", "--serve", "--out", "x.html"), "--serve writes no file"),
        (("report", ".", "--serve"), ".: an empty folder"),
        (("compare", "nowhere", "gone"), "gone: no such folder"),
        (("compare", "nowhere", "--target", "90"), "--target 90"),
        (("reproduce", "feddm-table11"), "did you mean 'feddm-table1'"),
        (("reproduce", "feddm-table1", "--scale", "cpus"), "did you mean 'cpu'"),
        (("run", "fedavg", "--track", "tensorbord"), "did you mean 'tensorboard'"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedstill import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedstill", *arguments])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    errors: list[str] = []
    monkeypatch.setattr(Console, "print", lambda _self, text, **_kw: errors.append(str(text)))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert len(errors) == 1
    assert message in errors[0]
    assert "\n" not in errors[0]
    assert not list(tmp_path.iterdir())


def test_errors_reach_the_terminal_as_one_line(tmp_path: Path) -> None:
    failed = fedstill("run", "fedagv", cwd=tmp_path)
    assert failed.returncode == 2
    assert failed.stderr.count("\n") == 1
    assert failed.stdout == ""
    assert "Traceback" not in failed.stderr


def test_a_failed_run_is_exit_code_1(tmp_path: Path) -> None:
    options = ("--set", "method.learning_rate=1e30", "--out", "run")
    failed = fedstill("run", "fedavg", *FAST, *options, cwd=tmp_path)
    assert failed.returncode == 1
    assert "Traceback" not in failed.stderr
    assert "did the training diverge" in failed.stderr.splitlines()[-1]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_leaves_a_resumable_run(tmp_path: Path, how: signal.Signals, workers: str) -> None:
    options = ["--model", "mlp", "--clients", "3", "--rounds", "200", "--workers", workers]
    command = [sys.executable, "-m", "fedstill", "run", "fedavg", *options, "--out", "run"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )
    metrics = tmp_path / "run" / "metrics.jsonl"

    def third_round() -> bool:
        assert process.poll() is None, process.communicate()[1]
        return metrics.exists() and metrics.read_bytes().count(b"\n") > 2

    wait_until(third_round, "the third round")
    process.send_signal(how)
    _, errors = process.communicate(timeout=FOREVER)
    assert process.returncode == 130
    assert "resume with: fedstill run --resume --out run" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert not _children_of(process.pid)


def _children_of(parent: int) -> list[str]:
    listed = subprocess.run(
        ["ps", "--ppid", str(parent), "-o", "pid="], capture_output=True, text=True
    )
    return listed.stdout.split()


def test_partition_shows_and_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = RUNNER.invoke(
        app, ["partition", "--clients", "5", "--partition", "classes:2", "--json"]
    )
    assert shown.exit_code == 0, shown.output
    answer = json.loads(shown.output.splitlines()[-1])
    assert len(answer["counts"]) == 5
    assert all(sum(count > 0 for count in row) == 2 for row in answer["counts"])
    assert (tmp_path / "partition.png").read_bytes().startswith(b"\x89PNG")
    assert "picture: partition.png" in shown.output


def test_partition_is_that_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fedstill as package

    monkeypatch.chdir(tmp_path)
    shown = RUNNER.invoke(app, ["partition", "--seed", "3", "--json"])
    result = package.run("fedavg", seed=3, rounds=1, workers=1, model="mlp", out="run")
    assert json.loads(shown.output.splitlines()[-1])["sha256"] == result.summary.partition_sha256


def test_list_names_everything() -> None:
    listed = RUNNER.invoke(app, ["list"]).output
    for name in ("fedavg", "scaffold", "digits", "cifar100", "convnet-small", "resnet18"):
        assert name in listed
    assert "scaffold" not in RUNNER.invoke(app, ["list", "models"]).output


@pytest.mark.parametrize("command", ["run", "partition", "list"])
def test_help_and_version(command: str) -> None:
    assert RUNNER.invoke(app, [command, "--help"]).exit_code == 0
    assert RUNNER.invoke(app, ["--version"]).output.startswith("fedstill ")
    assert isinstance(RUNNER.invoke(app, ["run", "nonsense"]).exception, RequestError)


def test_a_closed_pipe_does_not_stop_the_run(tmp_path: Path) -> None:
    arguments = " ".join(["run", "fedavg", *FAST, "--rounds", "6", "--out", "run"])
    command = f"{sys.executable} -m fedstill {arguments} 2>&1 | head -1"
    subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, check=False)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "done"


def test_a_picture_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    failed = fedstill("partition", "--out", str(tmp_path), cwd=tmp_path)
    assert failed.returncode == 1
    assert failed.stderr.count("\n") == 1
    assert "Traceback" not in failed.stderr


def test_a_small_disk_is_one_line(tmp_path: Path) -> None:
    """A real limit on the size of files, from the first one on."""
    command = " ".join([sys.executable, "-m", "fedstill", "run", "fedavg", *FAST, "--out", "run"])
    failed = subprocess.run(
        ["bash", "-c", f"ulimit -f 1; trap '' XFSZ; {command}"],
        cwd=tmp_path,
        # Coverage has no room for its file either, and would print that.
        env={k: v for k, v in os.environ.items() if not k.startswith("COV")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert failed.returncode in (1, 2)
    assert "Traceback" not in failed.stderr
    assert "File too large" in failed.stderr.splitlines()[-1]


def test_class_names_are_shown_as_they_are() -> None:
    import torch
    from rich.console import Console as Plain

    from fedstill.draw.terminal import partition_table

    console = Plain(record=True, width=100)
    console.print(partition_table(torch.ones(2, 3, dtype=torch.int64), ("[red]x", "[/x]", "z")))
    assert "[red]x" in console.export_text()


def test_numbers_for_people() -> None:
    assert [in_bytes(n) for n in (7, 1234, 5_600_000, 7.7e9, 2e13)] == [
        "7 B",
        "1.2 kB",
        "5.6 MB",
        "7.7 GB",
        "20.0 TB",
    ]
    assert [in_time(s) for s in (5, 75, 3700)] == ["0:05", "1:15", "1:01:40"]
    durations = [duration(s) for s in (5, 42, 75, 700, 3700)]
    assert durations == ["5.0 s", "42 s", "1 min 15 s", "11 min", "1 h 1 min"]
    assert in_percent(0.93124) == "93.12%"
    assert in_percent(None) == "-"


SUMMARY = Summary(
    "fedavg", "digits", 3, "iid", 0, 0, None, None, None, 0, 0, 0.0, None, None, "running",
    "mlp", 100, "", "", "", "0",
)  # fmt: skip


@pytest.mark.parametrize("live", [True, False])
def test_progress_shows_round_client_step_accuracy_bytes_and_time_left(live: bool) -> None:
    with open(os.devnull, "w") as nowhere:
        console = Console(file=nowhere, record=True, force_terminal=live, width=120)
        watcher = LiveProgress(console) if live else PlainProgress(console)
        watcher.started(Path("run"), SUMMARY, 2, 0)
        watcher.note("by the way")
        watcher.round_started(1, [0, 1])
        watcher.client_progress(1, 3, 9)
        watcher.client_done(1, None)
        watcher.client_done(0, "no luck")
        watcher.server_progress(1, 2)
        watcher.round_done(RoundMetrics(1, 0.5, 1.0, 2000, 1000, 0.1, 1.5, [1], {0: "no luck"}))
        if isinstance(watcher, LiveProgress):
            assert [task.completed for task in watcher.bars.tasks] == [0.5, 1.0]
            whole = watcher.bars.tasks[0].fields["detail"]
            assert whole.startswith("1/2  accuracy 50.00%  up 2.0 kB  down 1.0 kB  left ")
        watcher.finished(Path("run"), SUMMARY)
        watcher.stop()
        text = console.export_text()
    for line in (
        "fedavg on digits: 3 clients, iid, mlp (100 weights), seed 0",
        "note: by the way",
        "client 0 failed: no luck",
        "round 1/2  accuracy 50.00%  loss 1.0000  up 2.0 kB  down 1.0 kB  epsilon 1.50  failed 1",
        "left 0:00",
    ):
        assert line in text
