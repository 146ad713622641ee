"""Holds a simulation's processes, and ends every one of them when its standard input closes.

A SuperLink starts further processes, and Ray starts more that leave every process group. A run that
is killed could not end them. So a run starts only this supervisor, which outlives it by a moment:
the end of standard input means the end of the run, whatever the cause.

    python supervisor.py FOLDER

Commands are in ``FOLDER/commands.json``: they start one after another, each when the port that it
names in ``wait`` answers. It imports nothing of fedstill, so that it starts at once.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

_GRACE = 10.0  # seconds for processes to end by themselves after SIGTERM


def main() -> None:
    """Start, wait for the end of standard input or of the last command, end everything."""
    folder = Path(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    started: list[subprocess.Popen[bytes]] = []
    try:
        over = threading.Event()
        threading.Thread(target=_watch_input, args=(over,), daemon=True).start()
        for number, command in enumerate(json.loads((folder / "commands.json").read_text())):
            if port := command.get("wait"):
                _wait_for(port, over)
            with (folder / f"{number}.log").open("wb") as log:
                started.append(
                    subprocess.Popen(
                        command["words"],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        while not over.is_set() and all(process.poll() is None for process in started):
            over.wait(0.2)
        if not over.is_set():  # a command ended first: report it, and wait for the end of input
            print("ended", flush=True)
            over.wait()
    finally:
        end(started, folder)
        shutil.rmtree(folder, ignore_errors=True)


def end(started: "list[subprocess.Popen[bytes]]", folder: Path) -> None:
    """End these processes, their groups, and all others that belong to the folder."""
    for process in reversed(started):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGTERM)
    _signal(processes_of(folder), signal.SIGTERM)
    deadline = time.monotonic() + _GRACE
    while time.monotonic() < deadline and (
        any(process.poll() is None for process in started) or processes_of(folder)
    ):
        time.sleep(0.1)
    for process in started:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    while time.monotonic() < deadline + _GRACE and (left := processes_of(folder)):
        _signal(left, signal.SIGKILL)
        time.sleep(0.1)


def _signal(numbers: list[int], number: signal.Signals) -> None:
    for process in numbers:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def processes_of(folder: Path) -> list[int]:
    """Processes that have the folder in their environment, or a file open in it."""
    mark = f"FLWR_HOME={folder}{os.sep}".encode()
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):  # nothing where there is no /proc
        with suppress(OSError):
            files = (os.readlink(file) for file in (process / "fd").iterdir())
            if mark in (process / "environ").read_bytes() or any(
                file.startswith(f"{folder}{os.sep}") for file in files
            ):
                found.append(int(process.name))
    return [number for number in found if number != os.getpid()]


def _watch_input(over: threading.Event) -> None:
    while sys.stdin.buffer.read(1):
        pass
    over.set()


def _wait_for(port: int, over: threading.Event) -> None:
    while not over.is_set():
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        over.wait(0.05)


if __name__ == "__main__":
    main()
