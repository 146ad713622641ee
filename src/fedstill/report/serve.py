"""A live page of a run, or of all runs in a folder, on this machine's loopback address.

Every page is made from run folders at the moment it is asked for, and no file is served: no path
can lead out of the folder, because a path is only compared with the names of the runs found there.
It reads only, so a run can stop, restart or be resumed meanwhile; what cannot be read for a moment
is asked for again.
"""

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedstill.errors import FedstillError, RequestError
from fedstill.report.index_page import address, index_page
from fedstill.report.page import report_page
from fedstill.report.source import open_run, tag_of
from fedstill.runs.place import refuse_unless_runs, runs_in
from fedstill.version import VERSION

HOST = "127.0.0.1"
_FIRST, _TRIES = 8080, 50


@dataclass(frozen=True)
class LivePage:
    """A page, and a tag that changes when it does."""

    tag: Callable[[], str]
    make: Callable[[], str]


def _run_page(run: Path) -> LivePage:
    return LivePage(lambda: tag_of(run), lambda: report_page(open_run(run), live=True))


def _index(folder: Path) -> LivePage:
    def tag() -> str:
        tags = [f"{run} {tag_of(run)}" for run in runs_in(folder)]
        return hashlib.sha256("\n".join(tags).encode()).hexdigest()[:32]

    return LivePage(tag, lambda: index_page(folder))


class LiveServer(ThreadingHTTPServer):
    """Serves one run, or a folder of runs; stop it with ``shutdown``."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.several = bool(runs_in(folder))
        super().__init__((HOST, port), _Handler)

    def page(self, path: str) -> LivePage | None:
        """What is at this path: it ends in ``/``, or in ``/page`` where a script asks."""
        place = path.removesuffix("page")
        if place == "/":
            return _index(self.folder) if self.several else _run_page(self.folder)
        runs = runs_in(self.folder) if self.several else []
        names = {address(str(run.relative_to(self.folder))): run for run in runs}
        return _run_page(names[place]) if place in names else None

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader who goes away in the middle of an answer is nobody's error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def open_server(folder: Path, port: int | None) -> LiveServer:
    """A server on this port, or on the first free one."""
    refuse_unless_runs(folder)
    for candidate in range(_FIRST, _FIRST + _TRIES) if port is None else (port,):
        try:
            return LiveServer(folder, candidate)
        except OverflowError as error:
            raise RequestError(f"--port {candidate}: not a port; use 0 to 65535") from error
        except OSError as error:
            if port is not None:
                raise RequestError(f"--port {port}: {error.strerror}; name another one") from error
    raise RequestError(f"no free port from {_FIRST} on; name one by --port")


def serve(folder: Path, port: int | None, say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C."""
    with open_server(folder, port) as server:
        say(server.address)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            return


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version = f"fedstill/{VERSION}"
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        # Another site's page may point its own name at this machine and ask: it gets nothing.
        names = (f"{HOST}:{self.server.server_port}", f"localhost:{self.server.server_port}")
        if self.headers.get("Host") not in names:
            self._answer(HTTPStatus.FORBIDDEN, "ask for this page by its own address\n")
        else:
            self._page()

    def _page(self) -> None:
        try:
            found = self.server.page(self.path)
            if found is None:
                self._answer(HTTPStatus.NOT_FOUND, "there is only /\n")
                return
            tag = f'"{found.tag()}"'  # before the page: it may only be older than it
            if self.headers.get("If-None-Match") == tag:
                self._answer(HTTPStatus.NOT_MODIFIED, "", ETag=tag)
                return
            page = found.make()
        except (FedstillError, OSError) as error:  # being restarted, moved or removed
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n")
            return
        self._answer(HTTPStatus.OK, page, "text/html", ETag=tag)

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain", **more: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        for name, value in more.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Methods other than GET come here as 501, from the library: they are not allowed."""
        self.close_connection = True  # what follows may be the body of a message not read
        if code == HTTPStatus.NOT_IMPLEMENTED:
            self._answer(
                HTTPStatus.METHOD_NOT_ALLOWED, "only GET\n", Allow="GET", Connection="close"
            )
        else:
            status = HTTPStatus(code)
            self._answer(status, f"{message or status.phrase}\n", Connection="close")

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: the terminal belongs to the user."""
