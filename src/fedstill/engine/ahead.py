"""Worker processes that are started before it is known what they will work on.

A worker first imports PyTorch, for seconds. This process does the same, and then loads data:
started ahead, workers do it meanwhile. Whoever needs a worker takes one from here; what nobody took
is ended.
"""

import atexit
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

LOCAL = "fedstill.engine.worker"  # the module that a worker of the local engine runs

_idle: dict[str, list["subprocess.Popen[bytes]"]] = {}


def start(module: str) -> "subprocess.Popen[bytes]":
    """A new process that runs ``python -m MODULE``."""
    return subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is handled by the parent
    )


def take(module: str) -> "subprocess.Popen[bytes]":
    """A process that runs this module: one that was started ahead, or a new one."""
    waiting = _idle.get(module, [])
    while waiting:
        process = waiting.pop()
        if process.poll() is None:
            return process
    return start(module)


@contextmanager
def started_ahead(number: int, module: str = LOCAL) -> Iterator[None]:
    """Within the block up to ``number`` processes of this module wait to be taken."""
    waiting = _idle.setdefault(module, [])
    if number > 1:  # a single client at a time runs in this process
        waiting.extend(start(module) for _ in range(number - len(waiting)))
    try:
        yield
    finally:
        end_idle()


def end_idle() -> None:
    """End the processes that nobody took."""
    for waiting in _idle.values():
        while waiting:
            process = waiting.pop()
            process.kill()
            process.communicate()


atexit.register(end_idle)


def workers_expected(request: Mapping[str, Any]) -> int:
    """How many workers this request will probably need; what is left open counts as its default."""
    engine = request.get("engine", {})
    if engine.get("name", "local") != "local" or request.get("device", "cpu") != "cpu":
        return 0
    cores = (os.cpu_count() or 1) // engine.get("threads", 1)
    clients = round((request.get("clients") or 10) * request.get("participation", 1.0))
    return int(min(engine.get("workers") or cores, clients))
