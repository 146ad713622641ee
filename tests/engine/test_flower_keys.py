"""Keys bound to clients on a real deployment: a registered node cannot be another client."""

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedstill[flower]'")

from fedstill.deploy.check import check_app
from fedstill.deploy.control import control
from fedstill.deploy.keys import make_node_key
from fedstill.deploy.nodes import read_nodes, write_nodes
from tests.engine.deployment import TIMEOUT_FACTOR, Deployment

pytestmark = pytest.mark.slow

SETTINGS = [
    *("feddm", "--clients", "2", "--rounds", "2", "--partition", "iid"),
    *("--set", "model.width=4", "--set", "method.images_per_class=2"),
    *("--set", "method.iterations=4", "--set", "method.server_epochs=10"),
    # Client 1 never comes. All the while its node says that it is client 0.
    *("--set", "quorum=0.5", "--set", f"engine.join_timeout={round(45 * TIMEOUT_FACTOR)}"),
]


def test_a_registered_node_does_not_replace_another(tmp_path: Path) -> None:
    with Deployment(tmp_path, *SETTINGS) as deployment:
        first = deployment.register()
        assert first.count(", registered\n") == 2
        nodes = read_nodes(deployment.app)
        assert deployment.register().count("was registered already") == 2
        assert read_nodes(deployment.app) == nodes
        assert not any(finding.problem or finding.note for finding in check_app(deployment.app))
        deployment.be_faulty()
        deployment.start_node(0, key=deployment.key(0))
        deployment.connected("node-0")
        liar = 'faults="1-nan,2-nan"'
        deployment.start_node(0, liar, name="liar", key=deployment.key(1))  # the newest
        deployment.connected("liar")
        output = deployment.fedstill("deploy", "run", "app", "--out", str(tmp_path / "run"))
        assert [m["clients"] for m in deployment.metrics] == [[0], [0]]
        reason = "it says it is client 0, but its key is that of client 1: set its partition-id to"
        for metrics in deployment.metrics:
            assert f"node {nodes[1].node} was rejected: {reason}" in metrics["failed"]["1"]
        assert output.count(f"UserWarning: node {nodes[1].node} was rejected: ") == 1
        assert not (tmp_path / "run" / "refused").exists()  # the liar was never asked
        check_that_keys_can_be_replaced(deployment)


def check_that_keys_can_be_replaced(deployment: Deployment) -> None:
    nodes = read_nodes(deployment.app)
    # Registered, but bound to nobody: no run is started.
    write_nodes(deployment.app, {})
    code, output = deployment.attempt("deploy", "run", "app")
    assert code == 2
    assert "keys/node-0.pub is not bound to client 0" in output
    write_nodes(deployment.app, nodes)
    # Client 1 gets another key: the old one is admitted no longer, and cannot come back.
    key = deployment.key(1)
    old = key.with_name("old")
    for name in ("", ".pub"):
        key.with_name(f"node-1{name}").rename(old.with_name(f"old{name}"))
    make_node_key(key)
    (problem,) = [f.problem for f in check_app(deployment.app) if f.what == "nodes"]
    assert problem is not None
    assert "client 1 is not bound to" in problem
    output = deployment.fedstill("deploy", "register", "app", "--node", "1")
    assert f"node {nodes[1].node} is admitted no longer" in output
    renewed = read_nodes(deployment.app)
    assert renewed[0] == nodes[0]
    assert renewed[1].node != nodes[1].node
    with control(deployment.app) as superlink:
        status = {str(node.id): node.status for node in superlink.nodes()}
    assert status[nodes[1].node] == "unregistered"
    assert status[renewed[1].node] == "registered"
    key.with_name("node-1.pub").write_bytes(old.with_name("old.pub").read_bytes())
    code, output = deployment.attempt("deploy", "register", "app")
    assert code == 2
    assert "Flower does not take a key twice" in output
