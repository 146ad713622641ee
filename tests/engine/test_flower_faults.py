"""Nodes that die, hang, send wrong answers, join late and rejoin, and a killed server: for real.

One deployment goes through all of it, because every start of a process costs seconds.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedstill[flower]'")

from fedstill.engine.flower.codes import explained
from tests.engine.deployment import TIMEOUT_FACTOR, Deployment, Tap

pytestmark = pytest.mark.slow

LONG_WORK = 80  # longer than it takes Flower to declare a silent node dead (60 s)
# The longest work in a round, and as much again for a busy machine to start its processes.
ROUND_TIMEOUT = round(2.5 * LONG_WORK * TIMEOUT_FACTOR)
SETTINGS = [
    *("feddm", "--clients", "4", "--rounds", "6", "--partition", "iid"),
    *("--set", "model.width=4", "--set", "method.images_per_class=2"),
    *("--set", "method.iterations=4", "--set", "method.server_epochs=10"),
    *("--set", "wire.up=float32"),  # the faults are made in tensors of a safetensors message
    *("--set", "quorum=0.25", "--set", f"engine.round_timeout={ROUND_TIMEOUT}"),
    *("--set", f"engine.join_timeout={round(180 * TIMEOUT_FACTOR)}"),
]
FAULTS = {
    0: f"4-work{LONG_WORK}",
    1: "1-nan,2-many,3-huge,4-die",
    2: "1-shapes,2-label,3-raise,4-hang",
    3: "2-garbage,4-hang",
}
HUGE = 1024  # megabytes
LIMIT = ROUND_TIMEOUT + 120  # seconds until a round must be over


def start(deployment: Deployment, client: int, port: int | None = None) -> None:
    deployment.start_node(client, f'faults="{FAULTS[client]}" huge={HUGE}', port=port)


def test_a_federation_continues_whatever_its_nodes_do(tmp_path: Path) -> None:
    with Deployment(tmp_path, *SETTINGS, secure=False) as deployment:
        deployment.be_faulty()
        tap = Tap(deployment.port)
        start(deployment, 0, tap.port)
        start(deployment, 1)
        start(deployment, 2)
        deployment.run()
        deployment.wait(marked(deployment, 1, "1-nan"), LIMIT, "run")
        start(deployment, 3)  # late: the first round is under way
        deployment.rounds(3, 3 * LIMIT)
        # Round 4: one works for long, one's process dies, one hangs, one's SuperNode is killed.
        deployment.wait(marked(deployment, 3, "4-hang"), ROUND_TIMEOUT, "node-3")
        deployment.kill("node-3")
        deployment.rounds(4, LIMIT)
        check_what_was_refused(deployment)
        check_who_was_missing(deployment)
        # An eavesdropper on a connection without TLS could read it all: with TLS it cannot.
        assert b"__metadata__" in tap.up
        # The server is killed with everything it started; the nodes stay up and reconnect.
        deployment.kill("superlink")
        deployment.kill("run")
        deployment.kill("node-2")  # it would hang for an hour
        deployment.start_superlink()
        start(deployment, 2)
        start(deployment, 3)  # it rejoins
        deployment.run("resume=true")
        deployment.finished(3 * LIMIT)
        rounds = deployment.metrics
        assert [m["round"] for m in rounds] == [1, 2, 3, 4, 5, 6]
        assert rounds[4]["clients"] == rounds[5]["clients"] == [0, 1, 2, 3]
        assert rounds[5]["accuracy"] > rounds[0]["accuracy"]


def marked(deployment: Deployment, client: int, fault: str) -> Callable[[], bool]:
    """Whether the client has reached this fault."""
    return (deployment.folder / "nodes" / str(client) / fault).exists


def check_what_was_refused(deployment: Deployment) -> None:
    refused = {
        (1, 1): "holds NaN or infinity",
        (1, 2): "has shape",
        (2, 1): "has shape",
        (2, 2): "has values outside 0 .. 9",
        (2, 3): "not a safetensors message",
        (3, 1): "bytes, at most",
    }
    folder = deployment.folder / "run" / "refused"
    for (number, client), reason in refused.items():
        metrics = deployment.metrics[number - 1]
        assert client not in metrics["clients"]
        assert metrics["failed"][str(client)].startswith("refused: ")
        assert reason in metrics["failed"][str(client)]
        stem = folder / f"round-{number:04d}-client-{client:05d}"
        note = json.loads(stem.with_suffix(".json").read_text())
        assert reason in note["reason"]
        kept = stem.with_suffix(".bin").stat().st_size
        assert kept == note["kept"] == min(note["bytes"], 2**20)
    assert len(list(folder.glob("*.json"))) == len(refused)
    huge = json.loads((folder / "round-0003-client-00001.json").read_text())
    assert huge["bytes"] == HUGE * 2**20


def check_who_was_missing(deployment: Deployment) -> None:
    first, _, third, fourth = deployment.metrics[:4]
    assert first["clients"] == [0, 3]
    # The text of an error may hold records: only a code is sent.
    assert third["failed"]["2"] == explained("failed")
    assert "4711" in deployment.log("node-2")
    assert "4711" not in json.dumps(deployment.metrics)
    # Long work is no failure; a dead process, a killed node and a hang each have their reason.
    assert fourth["clients"] == [0]
    assert fourth["seconds"] > LONG_WORK
    assert "its process died" in fourth["failed"]["1"]
    assert fourth["failed"]["2"] == f"no answer within {ROUND_TIMEOUT} s"
    assert "the node is gone" in fourth["failed"]["3"]
