"""The real thing: a SuperLink and three SuperNodes as processes, with TLS and node keys."""

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedstill[flower]'")

import fedstill
from fedstill.deploy.keys import make_certificates, make_node_key
from tests.engine.deployment import Deployment, Tap

pytestmark = pytest.mark.slow

SMALL = [
    *("feddm", "--clients", "3", "--rounds", "2", "--model", "convnet-small"),
    *("--set", "model.width=4", "--set", "method.images_per_class=2"),
    *("--set", "method.iterations=4", "--set", "method.server_epochs=10"),
]
SECRETS = (b"safetensors", b"__metadata__", b"experiment", b"feddm", b"/v1/fleet")


def test_three_nodes_with_tls_and_keys(tmp_path: Path) -> None:
    with Deployment(tmp_path, *SMALL) as deployment:
        keys = deployment.app / "keys"
        deployment.register()
        # Two nodes that must be rejected: an unregistered key, and a server they cannot verify.
        make_node_key(tmp_path / "stranger")
        deployment.start_node(0, name="stranger", key=tmp_path / "stranger")
        make_certificates(tmp_path / "other", "127.0.0.1")
        other = tmp_path / "other" / "ca.crt"
        deployment.start_node(1, name="misled", key=keys / "node-1", authority=other)
        tap = Tap(deployment.port)
        deployment.start_node(0, key=keys / "node-0")
        deployment.start_node(1, key=keys / "node-1")
        deployment.start_node(2, key=keys / "node-2", port=tap.port)
        deployment.run()
        deployment.finished(420)
        assert [m["clients"] for m in deployment.metrics] == [[0, 1, 2]] * 2
        assert not any(m["failed"] for m in deployment.metrics)
        # Bit for bit what one machine computes.
        local = fedstill.run(
            config=deployment.app / "experiment.toml", engine="local", out=tmp_path / "local"
        )
        assert deployment.model == (local.folder / "model.safetensors").read_bytes()
        # The connection carried the messages, and an eavesdropper could read none of them.
        assert len(tap.up) > deployment.metrics[0]["up_bytes"] / 3
        assert not any(secret in tap.up + tap.down for secret in SECRETS)
        # The two were rejected, not merely late.
        for name in ("node-0", "node-1", "node-2"):
            assert "SuperNode ID: " in deployment.log(name)
        for name in ("stranger", "misled"):
            assert "SuperNode ID: " not in deployment.log(name)
            assert "Failed to initialize the connection" in deployment.log(name) or (
                "Connection attempt failed" in deployment.log(name)
            )
        assert "No SuperNode found with the given public key" in deployment.log("superlink")
