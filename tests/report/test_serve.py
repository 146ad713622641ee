"""The live page: what it answers, and what it refuses."""

import http.client
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedstill.errors import RequestError
from fedstill.report.serve import LiveServer, open_server
from tests.report.folders import written_run
from tests.waiting import FOREVER


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with open_server(written_run(tmp_path / "run"), 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()


def ask(
    server: LiveServer, path: str, method: str = "GET", **headers: str
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=FOREVER)
    connection.request(method, path, headers=headers)
    return connection.getresponse()


def test_it_serves_the_page_and_says_when_nothing_changed(server: LiveServer) -> None:
    answer = ask(server, "/")
    page = answer.read().decode()
    assert answer.status == 200
    assert "80.00%" in page
    assert "connect-src 'self'" in page
    tag = answer.headers["ETag"]
    assert ask(server, "/page", **{"If-None-Match": tag}).status == 304
    line = (server.folder / "metrics.jsonl").read_text().splitlines()[-1]
    with (server.folder / "metrics.jsonl").open("a") as file:
        file.write(line.replace('"round": 3', '"round": 4').replace("0.8", "0.95") + "\n")
    newer = ask(server, "/page", **{"If-None-Match": tag})
    assert newer.status == 200
    assert "95.00%" in newer.read().decode()


def test_it_survives_a_restart_of_the_run(server: LiveServer) -> None:
    away = server.folder.with_name("away")
    server.folder.rename(away)
    assert ask(server, "/").status == 503
    (server.folder).mkdir()
    assert ask(server, "/").status == 503
    shutil.copytree(away, server.folder, dirs_exist_ok=True)
    assert ask(server, "/").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE"])
def test_nothing_but_get(server: LiveServer, method: str) -> None:
    answer = ask(server, "/", method)
    assert answer.status == 405
    assert answer.headers["Allow"] == "GET"


@pytest.mark.parametrize(
    "path",
    [
        "/config.toml",
        "/../secret.txt",
        "/..%2fsecret.txt",
        "/%2e%2e/secret.txt",
        "//etc/passwd",
        "/etc/passwd",
        "/page/../../secret.txt",
        "/run/../secret.txt\\",
        "/?file=../secret.txt",
    ],
)
def test_no_path_leads_anywhere(server: LiveServer, path: str) -> None:
    (server.folder.parent / "secret.txt").write_text("secret")
    answer = ask(server, path)
    assert answer.status == 404
    assert b"secret" not in answer.read()


def test_it_listens_on_loopback_and_to_its_own_name_only(server: LiveServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert ask(server, "/", Host="evil.example").status == 403
    assert ask(server, "/", Host=f"localhost:{server.server_port}").status == 200


def test_rubbish_does_not_stop_it(server: LiveServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=FOREVER) as peer:
        peer.sendall(b"\x00\xff rubbish\r\n\r\n")
        peer.recv(1000)
    assert ask(server, "/").status == 200


def test_wrong_requests(tmp_path: Path, server: LiveServer) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match="an empty folder"):
        open_server(tmp_path / "empty", None)
    with pytest.raises(RequestError, match=f"--port {server.server_port}"):
        open_server(server.folder, server.server_port)
    with pytest.raises(RequestError, match="--port 70000"):
        open_server(server.folder, 70000)
