"""``--engine flower``: Flower's simulation runtime as an engine of this process.

The rounds run in this process. Flower is started next to it with a ServerApp that only relays
(relay.py), one simulated node per client, and our ClientApp in each. One start, about 15 seconds,
serves any number of experiments with that number of clients.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Self

import tomli_w

from fedstill.build import BuiltExperiment
from fedstill.config.nested import Table
from fedstill.engine.base import Answer, Engine, Progress, Work, decode_answer, encode_work
from fedstill.engine.flower import require_flower, supervisor
from fedstill.engine.flower.description import describe
from fedstill.engine.flower.environment import command, flower_environment
from fedstill.engine.flower.node import RELAY_SOCKET, SIMULATION, simulated_file
from fedstill.engine.handover import hand_over
from fedstill.engine.processes import read_frame, write_frame
from fedstill.errors import RunError
from fedstill.files import write_atomically

_START_SECONDS = 180.0
_END_SECONDS = 40.0
_APP: Table = {
    "project": {"name": "fedstill-simulation", "version": "1.0.0", "license": "Apache-2.0"},
    "tool": {
        "flwr": {
            "app": {
                "publisher": "fedstill",
                "components": {
                    "serverapp": "fedstill.engine.flower.relay:app",
                    "clientapp": "fedstill.engine.flower.client_app:app",
                },
            }
        }
    },
}


class Simulation:
    """Flower's simulation, running: simulated nodes 0 to ``clients`` - 1."""

    def __init__(self, clients: int, workers: int) -> None:
        require_flower(simulation=True)
        self._clients = clients
        self._workers = workers
        # Ray's sockets are below it, and their paths may have 100 characters at most.
        short = len(tempfile.gettempdir()) < 30
        self.folder = Path(tempfile.mkdtemp(prefix="fs", dir=None if short else "/tmp"))
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._stream: Any = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        port = _free_port()
        home = self.folder / "home"
        home.mkdir()
        link = {"address": f"127.0.0.1:{port}", "insecure": True}
        (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"simulation": link}}))
        (self.folder / "app").mkdir()
        (self.folder / "app" / "pyproject.toml").write_text(tomli_w.dumps(_APP))
        nodes = (
            f"num-supernodes={self._clients} client-resources-num-cpus=1 "
            f"init-args-num-cpus={self._workers}"
        )
        superlink = [command("flower-superlink"), "--insecure", "--simulation"]
        superlink += ["--host", "127.0.0.1", "--port", str(port)]
        superlink += ["--disable-runtime-dependency-installation"]
        run = [command("flwr"), "run", str(self.folder / "app"), "simulation", "--stream"]
        run += ["--federation-config", nodes]
        commands = [{"words": superlink}, {"words": run, "wait": port}]
        (self.folder / "commands.json").write_text(json.dumps(commands))
        environment = flower_environment(home) | {
            SIMULATION: str(self.folder),
            "RAY_worker_niceness": "0",  # the same priority as ours; Ray would add 15
        }
        if sys.platform == "linux":
            environment["RAY_TMPDIR"] = str(self.folder)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.folder / RELAY_SOCKET))
            listener.listen(1)
            self._supervisor = subprocess.Popen(
                [sys.executable, "-P", supervisor.__file__, str(self.folder)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is handled by this process
            )
            self._stream = self._accept(listener)

    def _accept(self, listener: socket.socket) -> Any:
        listener.settimeout(0.2)
        process = self._supervisor
        assert process is not None
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            with suppress(TimeoutError):
                line, _ = listener.accept()
                line.setblocking(True)
                return line.makefile("rwb")
            if process.stdout.read() or process.poll() is not None:
                break
        raise RunError(f"Flower's simulation did not start: {self._log_tail()}")

    def _log_tail(self) -> str:
        for log in sorted(self.folder.glob("[0-9].log"), reverse=True):
            lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
            if printed := [line for line in lines if line]:
                return " / ".join(printed[-3:])
        return "no output"

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            with suppress(OSError):
                self._stream.close()
        process = self._supervisor
        if process is not None and process.stdin is not None and process.stdout is not None:
            with suppress(OSError):
                process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            process.kill()
            process.wait()
            process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def announce(self, built: BuiltExperiment, scratch: Path) -> str:
        """Hand over an experiment to the simulated nodes; the description to send with its work."""
        text = describe(built).text
        header = {
            **hand_over(built, scratch),
            "path": sys.path,  # a user's modules are found as they are here
            "nodes": str((scratch.parent / "nodes").resolve()),
        }
        write_atomically(simulated_file(self.folder, text), tomli_w.dumps(header).encode())
        return text

    def exchange(self, text: str, works: Sequence[Work]) -> Iterator[Answer]:
        """The answers of all these clients, as they arrive."""
        try:
            encoded = [encode_work(work) for work in works]
            # The broadcast is the same for all: it is sent once.
            distinct = {part: i for i, part in enumerate(dict.fromkeys(chain(*encoded)))}
            places = [[distinct[part] for part in parts] for parts in encoded]
            write_frame(self._stream, {"experiment": text, "works": places}, list(distinct))
            while not (frame := read_frame(self._stream))[0].get("done"):
                yield decode_answer(frame[1])
        except (EOFError, OSError):
            raise RunError(
                f"Flower's simulation ended ({self._log_tail()}); resume with --resume"
            ) from None


class SimulationEngine(Engine):
    """One experiment on a simulation, its own or a shared one."""

    def __init__(
        self, built: BuiltExperiment, scratch: Path, simulation: Simulation | None = None
    ) -> None:
        self._built = built
        self._scratch = scratch
        self._shared = simulation is not None
        workers = built.experiment.engine.workers or 1
        self._simulation = simulation or Simulation(built.partition.clients, workers)
        self._text = ""

    def __enter__(self) -> Self:
        # First what may fail, e.g. on a full disk: there is nothing to end yet.
        self._text = self._simulation.announce(self._built, self._scratch)
        if not self._shared:
            self._simulation.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._shared:
            self._simulation.__exit__()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
        return self._simulation.exchange(self._text, works)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
