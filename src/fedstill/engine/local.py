"""The embedded engine: clients run on this machine, in this process or in several.

Which process computes a client changes no bit of its answer: each computation has the same
number of threads wherever it runs, and every random draw has its own named stream.
"""

import queue
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol, Self, cast

from fedstill import tree
from fedstill.engine.client import Answer, Work
from fedstill.engine.frames import read_frame, write_frame
from fedstill.engine.threads import threads
from fedstill.errors import RunError
from fedstill.files import write_atomically
from fedstill.setup import Setup

Progress = Callable[[int, int, int], None]  # client, step, steps


class Engine(Protocol):
    """Carries work to clients and their answers back, in any order."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
        """The answers of all these clients, as they come."""
        ...


class InProcess:
    """One client after another, right here."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
        for work in works:
            with threads(self._setup.experiment.engine.threads):
                answer = self._setup.runner.answer(work, partial(progress, work.client))
            yield answer


class WorkerProcesses:
    """Several clients at once, each worker process with one of them at a time."""

    def __init__(self, setup: Setup, workers: int) -> None:
        self._setup = setup
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        folder = Path(self._resources.enter_context(tempfile.TemporaryDirectory()))
        write_atomically(folder / "data.safetensors", tree.dump(self._setup.dataset))
        self._setup.partition.save(folder / "partition.safetensors")
        header = {
            "config": self._setup.experiment.table,
            "dataset": str(folder / "data.safetensors"),
            "partition": str(folder / "partition.safetensors"),
        }
        for _ in range(self._workers):
            process = subprocess.Popen(
                [sys.executable, "-m", "fedstill.engine.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the parent: it decides what happens
            )
            self._processes.append(process)
            write_frame(_stream(process.stdin), header)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.communicate()
        self._resources.close()

    def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
        # The largest first: then no worker is left with a long one at the end.
        size = {work.client: len(self._setup.partition.index(work.client)) for work in works}
        pending: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        for work in sorted(works, key=lambda w: -size[w.client]):
            pending.put(work)
        answers: queue.SimpleQueue[Answer | Exception] = queue.SimpleQueue()
        for process in self._processes:
            pending.put(None)
            threading.Thread(
                target=_serve, args=(process, pending, answers, progress), daemon=True
            ).start()
        for _ in works:
            answer = answers.get()
            if isinstance(answer, Exception):
                raise answer
            yield answer


def _serve(
    process: "subprocess.Popen[bytes]",
    pending: "queue.SimpleQueue[Work | None]",
    answers: "queue.SimpleQueue[Answer | Exception]",
    progress: Progress,
) -> None:
    """Feed one worker until no work is left."""
    try:
        while (work := pending.get()) is not None:
            header = {
                "round": work.round,
                "client": work.client,
                "has_state": work.state is not None,
            }
            write_frame(_stream(process.stdin), header, [work.message, work.state or b""])
            while True:
                reply, parts = read_frame(_stream(process.stdout))
                if "step" in reply:
                    progress(work.client, reply["step"], reply["steps"])
                elif "note" in reply:
                    warnings.warn(reply["note"], stacklevel=1)
                else:
                    break
            state = None if reply["stateless"] else parts[1]
            error, trace = reply["error"], reply["traceback"]
            answers.put(Answer(work.client, parts[0], state, error, trace))
    except (EOFError, OSError):
        code = process.poll()
        reason = f"ended with code {code}" if code is not None else "went away"
        answers.put(RunError(f"a worker process {reason} (out of memory?); go on with --resume"))
    except Exception as error:  # a bug of ours must not leave the main thread waiting
        answers.put(error)


def _stream(pipe: object) -> BinaryIO:
    return cast(BinaryIO, pipe)


def local_engine(setup: Setup, clients_a_round: int) -> Engine:
    """As many workers as are wished and of use."""
    workers = min(setup.experiment.engine.workers or 1, clients_a_round)
    if workers == 1 or not setup.portable:
        return InProcess(setup)
    return WorkerProcesses(setup, workers)
