"""``fedstill deploy run`` ends as the run ends, where `flwr run --stream` ends with 0."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedstill[flower]'")

from fedstill.deploy.control import Status
from fedstill.deploy.outcome import ServerAppFailed, marked_failure, refuse_failure
from fedstill.engine.flower.environment import command
from fedstill.errors import FedstillError, Interrupted, RequestError, RunError
from tests.engine.deployment import Deployment
from tests.waiting import FOREVER

pytestmark = pytest.mark.slow

ONE_CLIENT = [
    *("feddm", "--clients", "1", "--rounds", "1", "--model", "convnet-small"),
    *("--set", "model.width=4", "--set", "method.images_per_class=2"),
    *("--set", "method.iterations=2", "--set", "method.server_epochs=2"),
]


@pytest.mark.parametrize("error", [RunError("a; b: c"), RequestError("a\nb"), Interrupted("x")])
def test_errors_come_through_flower_with_their_exit_code(error: FedstillError) -> None:
    with pytest.raises(ServerAppFailed) as failed, marked_failure():
        raise error
    details = f"ServerApp failed with exception: {failed.value}"
    with pytest.raises(type(error)) as raised:
        refuse_failure(Status(True, "failed", details), "resume with: this")
    assert raised.value.exit_code == error.exit_code
    if not isinstance(error, Interrupted):
        assert str(error) in str(raised.value)


def test_other_ends_of_a_run() -> None:
    refuse_failure(Status(True, "completed", ""), "again")
    with pytest.raises(Interrupted, match="stopped; again"):
        refuse_failure(Status(True, "stopped", ""), "again")
    with pytest.raises(RunError, match="no heartbeat; again"):
        refuse_failure(Status(True, "failed", "no heartbeat"), "again")


def test_the_exit_code_of_a_run(tmp_path: Path) -> None:
    with Deployment(tmp_path, *ONE_CLIENT, secure=False) as deployment:
        deployment.start_node(0)
        deployment.connected("node-0")
        run = ["deploy", "run", "app", "--out", str(tmp_path / "run")]
        code, output = deployment.attempt(*run)
        assert code == 0, output
        assert "nodes.toml is empty: every node is the client that it says it is" in output
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        assert summary["status"] == "done"
        # The request is wrong, which only the ServerApp finds out.
        code, output = deployment.attempt(*run)
        assert code == 2, output
        assert "fedstill: " in output.splitlines()[-1]
        assert str(tmp_path / "run") in output.splitlines()[-1]
        # The run fails: no client, no quorum.
        deployment.kill("node-0")
        set_join_timeout(deployment, 1.0)
        failing = [*run[:-1], str(tmp_path / "failed")]
        code, output = deployment.attempt(*failing)
        assert code == 1, output
        last = output.splitlines()[-1]
        assert "0 of 1 clients answered, the quorum is 1; client 0: " in last
        assert "resume with: fedstill deploy run app --resume" in last
        # It waits for a node: the command is interrupted, then the run is stopped from outside.
        set_join_timeout(deployment, 3600.0)
        check_interruption(deployment)
        deployment.kill("superlink")
        code, output = deployment.attempt(*run)
        assert code == 1
        assert "does not answer" in output.splitlines()[-1]


def set_join_timeout(deployment: Deployment, seconds: float) -> None:
    path = deployment.app / "experiment.toml"
    lines = [line for line in path.read_text().splitlines() if "join_timeout" not in line]
    at = lines.index("[engine]") + 1
    lines.insert(at, f"join_timeout = {seconds}")
    path.write_text("\n".join(lines) + "\n")


def check_interruption(deployment: Deployment) -> None:
    words = [sys.executable, "-m", "fedstill", "deploy", "run", "app", "--out", "waiting"]
    process = deployment.start("interrupted", words)
    deployment.wait((deployment.folder / "waiting" / "config.toml").exists, FOREVER, "interrupted")
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(FOREVER) == 130
    (line,) = [x for x in deployment.log("interrupted").splitlines() if "continues without" in x]
    number = line.split("run ", 1)[1].split()[0]
    process = deployment.start("stopped", [*words[:-1], "second"])
    deployment.wait((deployment.folder / "second" / "config.toml").exists, FOREVER, "stopped")
    started = deployment.log("stopped").split("run ", 1)[1].split()[0]
    for run in (number, started):
        subprocess.run(
            [command("flwr"), "stop", run, "deployment"],
            env=deployment.environment,
            check=True,
            capture_output=True,
            timeout=FOREVER,
        )
    assert process.wait(FOREVER) == 130
    assert "the run was stopped; resume with" in deployment.log("stopped")
