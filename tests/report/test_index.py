"""All runs of a folder on one page, and live."""

import http.client
import re
import threading
from pathlib import Path
from urllib.parse import quote

import pytest

from fedstill.errors import RequestError
from fedstill.report import write_report
from fedstill.report.index_page import index_page
from fedstill.report.serve import LiveServer, open_server
from fedstill.runs.place import runs_in
from tests.report.folders import NASTY, written_run
from tests.waiting import FOREVER


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    runs = tmp_path / "runs"
    written_run(runs / "first")
    written_run(runs / "recipe" / "cell", method="feddm", accuracy=[0.9])
    written_run(runs / f"n & {NASTY.replace('/', '-')}", method="real", data=NASTY)
    (runs / "notes").mkdir()
    (runs / "notes" / "readme.txt").write_text("no run")
    return runs


def test_runs_are_found_and_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    outside = written_run(tmp_path / "outside")
    (folder / "link").symlink_to(outside)
    names = [str(run.relative_to(folder)) for run in runs_in(folder)]
    assert names == ["first", "n & <script>alert(1)<-script>", "recipe/cell"]
    assert runs_in(outside) == []  # a run is no folder of runs


def test_the_index_lists_and_links_every_run(folder: Path) -> None:
    (folder / "first" / "report.html").write_text("x")
    path = write_report(folder)
    assert path == folder / "index.html"
    page = path.read_text()
    assert "<h1>3 runs in runs</h1>" in page
    assert page.count("<tr>") == 4
    assert re.findall(r'<a href="([^"]*)"', page) == ["./first/report.html"]
    assert NASTY not in page
    assert page.count("<script") == 2
    assert "connect-src 'none'" in page
    write_report(folder)  # its own page is replaced


def test_a_page_of_others_is_kept(folder: Path) -> None:
    (folder / "index.html").write_text("my own page")
    with pytest.raises(RequestError, match="not a page of fedstill"):
        write_report(folder)
    assert (folder / "index.html").read_text() == "my own page"


def test_folders_without_runs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    with pytest.raises(RequestError, match="no run here"):
        write_report(tmp_path)


def test_a_run_that_cannot_be_read_is_told(folder: Path) -> None:
    (folder / "first" / "config.toml").write_text("= rubbish")
    (folder / "first" / "summary.json").write_text("{")
    page = index_page(folder, folder)
    assert "<h1>3 runs in runs</h1>" in page


@pytest.fixture
def server(folder: Path):  # type: ignore[no-untyped-def]
    with open_server(folder, 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def ask(server: LiveServer, path: str, **headers: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=FOREVER)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.headers.get("ETag", "")


def test_the_live_index_leads_to_live_reports(server: LiveServer) -> None:
    status, page, tag = ask(server, "/")
    assert status == 200
    links = re.findall(r'<a href="\.(/run/[^"]*/)"', page)
    assert sorted(links) == sorted(
        f"/run/{quote(name, safe='')}/"
        for name in ("first", "n & <script>alert(1)<-script>", "recipe/cell")
    )
    for link in links:
        assert ask(server, link)[0] == 200
        assert ask(server, f"{link}page")[0] == 200
    assert "90.00%" in ask(server, "/run/recipe%2Fcell/")[1]
    assert ask(server, "/page", **{"If-None-Match": tag})[0] == 304
    written_run(server.folder / "new")
    status, page, _ = ask(server, "/page", **{"If-None-Match": tag})
    assert status == 200
    assert "4 runs in runs" in page


@pytest.mark.parametrize(
    "path",
    [
        "/run/",
        "/run/first",
        "/run/notes/",
        "/run/../first/",
        "/run/recipe/cell/",
        "/run/%2e%2e%2fsecret/",
        "/run/first/config.toml",
        "/run/first/../../secret/",
        "/first/report.html",
    ],
)
def test_no_path_leads_anywhere_else(server: LiveServer, path: str) -> None:
    written_run(server.folder.parent / "secret")
    assert ask(server, path)[0] == 404
