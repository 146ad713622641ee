"""The proxy as docs/deploy.md prints it: nodes pass, the control API is blocked."""

import shutil
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedstill[flower]'")

from tests.engine.deployment import ROOT, Deployment, answers, free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx"),
]

ONE_ROUND = [
    *("feddm", "--clients", "1", "--rounds", "1", "--model", "convnet-small"),
    *("--set", "model.width=4", "--set", "method.images_per_class=2"),
    *("--set", "method.iterations=2", "--set", "method.server_epochs=2"),
]


def configuration(deployment: Deployment, port: int) -> str:
    """The document's server block with this deployment's ports and paths, made complete."""
    guide = (ROOT / "docs" / "deploy.md").read_text()
    block = guide.split("```nginx\n", 1)[1].split("```", 1)[0]
    for printed, ours in (
        ("listen 8443", f"listen 127.0.0.1:{port}"),
        ("127.0.0.1:8000", f"127.0.0.1:{deployment.port}"),
        ("/srv/app", str(deployment.app)),
    ):
        assert printed in block
        block = block.replace(printed, ours)
    folder = deployment.folder / "nginx"
    folder.mkdir()
    return (
        f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{ access_log off; client_body_temp_path {folder}; "
        f"proxy_temp_path {folder}/proxy;\n{block}}}\n"
    )


def status(url: str, authority: Path) -> int:
    trust = ssl.create_default_context(cafile=str(authority))
    request = urllib.request.Request(
        url, data=b"", headers={"Content-Type": "application/protobuf"}
    )
    try:
        with urllib.request.urlopen(request, context=trust, timeout=20) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_proxy_lets_nodes_through_and_blocks_the_control_api(tmp_path: Path) -> None:
    with Deployment(tmp_path, *ONE_ROUND) as deployment:
        port = free_port()
        file = tmp_path / "nginx.conf"
        file.write_text(configuration(deployment, port))
        deployment.start("nginx", ["nginx", "-c", str(file), "-e", str(tmp_path / "nginx.log")])
        deployment.wait(lambda: answers(port), 30, "nginx")
        deployment.register()
        deployment.start_node(0, key=deployment.key(0), port=port)
        deployment.run()
        deployment.finished(240)
        assert [m["clients"] for m in deployment.metrics] == [[0]]
        # The same request reaches the API where the SuperLink listens, and not through the proxy.
        authority = deployment.app / "certificates" / "ca.crt"
        path = "/v1/control/list-nodes"
        assert status(f"https://127.0.0.1:{port}{path}", authority) == 403
        assert status(f"https://127.0.0.1:{deployment.port}{path}", authority) == 200
