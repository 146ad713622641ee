"""Programs that are killed come back by themselves, and the result has the same bits."""

import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedstill[flower]'")

import fedstill
from tests.engine.deployment import Deployment, Service
from tests.waiting import FOREVER

pytestmark = pytest.mark.slow

SETTINGS = [
    *("feddm", "--clients", "2", "--rounds", "3", "--partition", "iid"),
    *("--set", "model.width=4", "--set", "method.images_per_class=2"),
    *("--set", "method.iterations=4", "--set", "method.server_epochs=10"),
    *("--set", "engine.join_timeout=900", "--set", "engine.round_timeout=900"),
]
HOLD = "2-hold"  # in round 2 the clients wait, until what is to be killed has been killed


def test_killed_programs_come_back_and_the_bits_stay(tmp_path: Path) -> None:
    with Deployment(tmp_path, *SETTINGS) as deployment, ExitStack() as services:
        deployment.be_faulty()
        deployment.register()
        for client in range(2):
            words = deployment.node_command(client, f'faults="{HOLD}"', key=deployment.key(client))
            unit = "fedstill-supernode@.service"
            services.enter_context(Service(deployment, f"node-{client}", unit, words))
        # The SuperLink is killed while the clients work, and started again.
        first = start(deployment, "first")
        wait_for_work(deployment)
        deployment.kill("superlink")
        deployment.start_superlink()
        release(deployment)
        assert first.wait(FOREVER) == 1, deployment.log("first")
        assert "resume with: fedstill deploy run" in deployment.log("first")
        assert len(deployment.metrics) == 1
        # A SuperNode is killed while its client works. Flower refuses it until it has missed two
        # heartbeats; meanwhile the run ends without the quorum.
        second = start(deployment, "second", "--resume")
        wait_for_work(deployment)
        deployment.kill("node-1")
        release(deployment)
        assert second.wait(FOREVER) == 1, deployment.log("second")
        assert "client 1: the node is gone" in deployment.log("second")
        # It takes part again without anybody's help.
        third = start(deployment, "third", "--resume")
        release(deployment)
        assert third.wait(FOREVER) == 0, deployment.log("third")
        assert "Exit Code: 305" in deployment.log("node-1")
        connected = re.findall(r"SuperNode ID: (\d+)", deployment.log("node-1"))
        assert len(connected) >= 2
        assert len(set(connected)) == 1  # its key is the same node for ever
        assert [m["clients"] for m in deployment.metrics] == [[0, 1]] * 3
        local = fedstill.run(
            config=deployment.app / "experiment.toml", engine="local", out=tmp_path / "local"
        )
        assert deployment.model == (local.folder / "model.safetensors").read_bytes()


def start(deployment: Deployment, name: str, *options: str) -> "subprocess.Popen[bytes]":
    for client in range(2):
        mark(deployment, client).unlink(missing_ok=True)
        mark(deployment, client).with_suffix(".go").unlink(missing_ok=True)
    words = [sys.executable, "-m", "fedstill", "deploy", "run", "app", *options]
    return deployment.start(name, [*words, "--out", str(deployment.folder / "run")])


def mark(deployment: Deployment, client: int) -> Path:
    return deployment.folder / "nodes" / str(client) / HOLD


def release(deployment: Deployment) -> None:
    for client in range(2):
        mark(deployment, client).with_suffix(".go").touch()


def wait_for_work(deployment: Deployment) -> None:
    for client in range(2):
        deployment.wait(mark(deployment, client).exists, FOREVER, f"node-{client}")
