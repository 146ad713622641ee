"""The embedded engine: clients run on this machine, in this process or in several.

Which process computes a client changes no bit of its answer: each computation has the same
number of threads everywhere, and every random draw has its own named stream.
"""

import queue
import shutil
import threading
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from fedstill.build import BuiltExperiment
from fedstill.engine import ahead
from fedstill.engine.base import Answer, Engine, Progress, Work, decode_answer, encode_work
from fedstill.engine.handover import hand_over
from fedstill.engine.processes import WorkerProcess
from fedstill.engine.threads import threads

_ADVICE = "; resume with --resume"


class InProcess(Engine):
    """One client after another, in this process."""

    def __init__(self, built: BuiltExperiment) -> None:
        self._built = built

    def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
        for work in works:
            with threads(self._built.experiment.engine.threads):
                answer = self._built.runner.answer(work, partial(progress, work.client))
            yield answer


class WorkerPool(Engine):
    """Several clients at once, each worker process with one of them at a time."""

    def __init__(self, built: BuiltExperiment, workers: int, scratch: Path) -> None:
        self._built = built
        self._workers = workers
        self._processes: list[WorkerProcess] = []
        self._threads: list[threading.Thread] = []
        # In the run's folder: a resumed run replaces what a killed one left there.
        self._scratch = scratch

    def __enter__(self) -> Self:
        header = hand_over(self._built, self._scratch)
        for _ in range(self._workers):
            self._processes.append(WorkerProcess(ahead.LOCAL, header, _ADVICE))
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        # A thread that still reads sees the end of its stream. Only then may it be closed.
        for thread in filter(threading.Thread.is_alive, self._threads):
            thread.join()
        for process in self._processes:
            process.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
        # The largest first, so that no worker is left with a long one at the end.
        size = {work.client: len(self._built.partition.index(work.client)) for work in works}
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
    process: WorkerProcess,
    pending: "queue.SimpleQueue[Work | None]",
    answers: "queue.SimpleQueue[Answer | Exception]",
    progress: Progress,
) -> None:
    """Feed one worker until no work is left."""
    try:
        while (work := pending.get()) is not None:
            process.send({}, encode_work(work))
            while True:
                header, parts = process.receive()
                if "step" in header:
                    progress(work.client, header["step"], header["steps"])
                elif "note" in header:
                    warnings.warn(header["note"], stacklevel=1)
                else:
                    break
            answers.put(decode_answer(parts))
    except Exception as error:  # a bug of ours must not leave the main thread waiting
        answers.put(error)


def local_engine(built: BuiltExperiment, scratch: Path) -> Engine:
    """An engine with the requested workers, at most one per sampled client.

    ``scratch`` is a folder for their files.
    """
    workers = min(built.experiment.engine.workers or 1, built.clients_per_round)
    if workers == 1 or not built.portable:
        return InProcess(built)
    return WorkerPool(built, workers, scratch)
