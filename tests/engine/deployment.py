"""A SuperLink, SuperNodes and runs as real processes on the loopback interface, for tests.

Everything is below one folder, and every process has ended when the block ends.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from fedstill.engine.flower.environment import command, flower_environment
from fedstill.engine.flower.supervisor import end, processes_of
from tests.waiting import FOREVER, heed_interrupts

TIMEOUT_FACTOR = float(os.environ.get("FEDSTILL_TEST_PATIENCE", "1"))  # larger on a busy machine
ROOT = Path(__file__).parent.parent.parent


class Deployment:
    """An app in ``folder / "app"`` that was made by ``fedstill deploy init``."""

    def __init__(self, folder: Path, *init: str, secure: bool = True) -> None:
        self.folder = folder
        self.app = folder / "app"
        self.home = folder / "home"
        self.secure = secure
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = flower_environment(self.home) | {
            "OMP_NUM_THREADS": "1",
            # Seconds until a SuperExec looks for work again; by default a whole one per message.
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        }
        arguments = ["deploy", "init", str(self.app), "--address", f"127.0.0.1:{self.port}", *init]
        self.fedstill(*arguments)

    def __enter__(self) -> Self:
        self.home.mkdir(exist_ok=True)
        config = (self.app / "flower" / "config.toml").read_text()
        if not self.secure:
            config = f'[superlink.deployment]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        for home in (self.home, self.app / "flower"):  # of Flower's programs, and of fedstill's
            (home / "config.toml").write_text(config)
        self.start_superlink()
        return self

    def __exit__(self, *_: object) -> None:
        end(list(self.processes.values()), self.folder)
        assert not processes_of(self.folder), "a process of Flower's is still there"

    def fedstill(self, *arguments: str) -> str:
        """What the command prints; it must succeed."""
        code, output = self.attempt(*arguments)
        assert code == 0, output
        return output

    def attempt(self, *arguments: str) -> tuple[int, str]:
        """A command's exit code and output."""
        done = subprocess.run(
            [sys.executable, "-m", "fedstill", *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=FOREVER,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def start(self, name: str, arguments: list[str]) -> "subprocess.Popen[bytes]":
        # Only processes started here have this folder as FLWR_HOME: that is how they are found.
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                arguments,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=heed_interrupts,
            )
        return self.processes[name]

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start_superlink(self) -> None:
        arguments = [command("flower-superlink"), "--host", "127.0.0.1", "--port", str(self.port)]
        arguments += ["--disable-runtime-dependency-installation"]
        arguments += ["--database", str(self.folder / "superlink.db")]
        if self.secure:
            certificates = self.app / "certificates"
            arguments += ["--ssl-ca-certfile", str(certificates / "ca.crt")]
            arguments += ["--ssl-certfile", str(certificates / "server.crt")]
            arguments += ["--ssl-keyfile", str(certificates / "server.key")]
            arguments += ["--enable-supernode-auth"]
        else:
            arguments += ["--insecure"]
        process = self.start("superlink", arguments)
        self.wait(lambda: answers(self.port) or process.poll() is not None, 120, "superlink")
        assert process.poll() is None, self.log("superlink")

    def register(self) -> str:
        """Register all nodes' keys, each bound to its client."""
        return self.fedstill("deploy", "register", str(self.app))

    def start_node(
        self,
        client: int,
        config: str = "",
        *,
        name: str | None = None,
        port: int | None = None,
        key: Path | None = None,
        authority: Path | None = None,
    ) -> "subprocess.Popen[bytes]":
        arguments = self.node_command(client, config, port=port, key=key, authority=authority)
        return self.start(name or f"node-{client}", arguments)

    def node_command(
        self,
        client: int,
        config: str = "",
        *,
        port: int | None = None,
        key: Path | None = None,
        authority: Path | None = None,
    ) -> list[str]:
        arguments = [command("flower-supernode"), "--superlink", f"127.0.0.1:{port or self.port}"]
        arguments += ["--host", "127.0.0.1", "--port", str(free_port())]
        if self.secure:
            authority = authority or self.app / "certificates" / "ca.crt"
            arguments += ["--root-certificates", str(authority)]
            if key is not None:
                arguments += ["--auth-supernode-private-key", str(key)]
        else:
            arguments += ["--insecure"]
        node = self.folder / "nodes" / f"{client}"
        arguments += ["--node-config", f'partition-id={client} folder="{node}" {config}'.strip()]
        return arguments

    def connected(self, *names: str, times: int = 1) -> None:
        """Wait until these nodes have connected that many times since they were first started."""
        for name in names:

            def done(name: str = name) -> bool:
                return self.log(name).count("SuperNode ID: ") >= times

            self.wait(done, FOREVER, name)

    def key(self, client: int) -> Path:
        return self.app / "keys" / f"node-{client}"

    def be_faulty(self) -> None:
        """Give the nodes an app with the faults that their configuration asks for."""
        client = self.app / "fedstill_app" / "client.py"
        client.write_text("from tests.engine.faulty import app\n\n__all__ = ['app']\n")

    def run(self, *config: str) -> "subprocess.Popen[bytes]":
        arguments = [command("flwr"), "run", str(self.app), "deployment", "--stream"]
        out = f'out="{self.folder / "run"}"'
        arguments += ["--run-config", " ".join([out, *config])]
        return self.start("run", arguments)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        path = self.folder / "run" / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def rounds(self, number: int, seconds: float = 240) -> None:
        """Wait until that many rounds are done."""
        self.wait(lambda: len(self.metrics) >= number, seconds, "run")

    def finished(self, seconds: float = 300) -> None:
        """Wait until the run is over and has a model."""
        summary = self.folder / "run" / "summary.json"

        def over() -> bool:
            with suppress(OSError, ValueError):
                return bool(json.loads(summary.read_text())["status"] in ("done", "failed"))
            return False

        self.wait(over, seconds, "run")
        assert json.loads(summary.read_text())["status"] == "done", self.log("run")

    def wait(self, done: Callable[[], object], seconds: float, log: str) -> None:
        deadline = time.monotonic() + seconds * TIMEOUT_FACTOR
        while not done():
            assert time.monotonic() < deadline, f"{log}: {self.log(log)[-3000:]}"
            time.sleep(0.1)

    def kill(self, name: str) -> None:
        """SIGKILL, to the process and everything in its group."""
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    @property
    def model(self) -> bytes:
        return (self.folder / "run" / "model.safetensors").read_bytes()


class Service:
    """Starts a program again whenever it ends, as systemd does with a service file of the app."""

    def __init__(self, deployment: Deployment, name: str, file: str, arguments: list[str]) -> None:
        lines = (deployment.app / "services" / file).read_text().splitlines()
        assert "Restart=always" in lines
        self._pause = float(*(x.partition("=")[2] for x in lines if x.startswith("RestartSec=")))
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(deployment, name, arguments), daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self, deployment: Deployment, name: str, arguments: list[str]) -> None:
        while not self._over.is_set():
            process = deployment.start(name, arguments)
            while process.poll() is None and not self._over.is_set():
                self._over.wait(0.1)
            self._over.wait(self._pause)


class Tap:
    """A recording proxy: forwards bytes to a port and keeps what went either way."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.up = bytearray()  # towards the target
        self.down = bytearray()
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            for source, sink, recorded in ((near, far, self.up), (far, near, self.down)):
                threading.Thread(target=_pass, args=(source, sink, recorded), daemon=True).start()


def _pass(source: socket.socket, sink: socket.socket, recorded: bytearray) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            recorded += data
            sink.sendall(data)
    for end_of_link in (source, sink):
        with suppress(OSError):
            end_of_link.shutdown(socket.SHUT_RDWR)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
