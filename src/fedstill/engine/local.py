"""The embedded engine: clients run on this machine, in this process or in several.

Which process computes a client changes no bit of its answer: each computation has the same
number of threads wherever it runs, and every random draw has its own named stream.
"""

import queue
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol, Self, cast

from fedstill.engine.client import Answer, Work
from fedstill.engine.frames import read_answer, read_frame, write_frame
from fedstill.engine.layout import lay_out
from fedstill.engine.threads import threads
from fedstill.errors import RunError
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

    def __init__(self, setup: Setup, workers: int, scratch: Path) -> None:
        self._setup = setup
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        # In the run's own folder: what a killed run leaves there, the resumed one replaces.
        self._scratch = scratch

    def __enter__(self) -> Self:
        header = lay_out(self._setup, self._scratch)
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
            process.wait()
        # A thread that still listens sees the end of its stream. Only then may it be closed.
        for thread in filter(threading.Thread.is_alive, self._threads):
            thread.join()
        for process in self._processes:
            process.communicate()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
        # The largest first: then no worker is left with a long one at the end.
        size = {work.client: len(self._setup.partition.index(work.client)) for work in works}
        pending: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        for work in sorted(works, key=lambda w: -size[w.client]):
            pending.put(work)
        answers: queue.SimpleQueue[Answer | Exception] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=_serve, args=(process, pending, answers, progress), daemon=True)
            for process in self._processes
        ]
        for thread in self._threads:
            pending.put(None)
            thread.start()
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
                elif "fatal" in reply:
                    raise RunError(f"a worker process could not start: {reply['fatal']}")
                else:
                    break
            answers.put(read_answer((reply, parts)))
    except (EOFError, OSError):
        answers.put(RunError(f"a worker process {_death(process)}"))
    except Exception as error:  # a bug of ours must not leave the main thread waiting
        answers.put(error)


def _death(process: "subprocess.Popen[bytes]") -> str:
    """Why a worker is gone: in its own words, where it had time to say them."""
    with suppress(EOFError, OSError, KeyError):
        return f"could not start: {read_frame(_stream(process.stdout))[0]['fatal']}"
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=5)
    killed = process.returncode == -signal.SIGKILL
    reason = "was killed (out of memory?)" if killed else f"ended ({process.returncode})"
    return f"{reason}; go on with --resume"


def _stream(pipe: object) -> BinaryIO:
    return cast(BinaryIO, pipe)


def local_engine(setup: Setup, clients_a_round: int, scratch: Path) -> Engine:
    """As many workers as are wished and of use. ``scratch`` is a folder for their files."""
    workers = min(setup.experiment.engine.workers or 1, clients_a_round)
    if workers == 1 or not setup.portable:
        return InProcess(setup)
    return WorkerProcesses(setup, workers, scratch)
