"""A worker process of the local engine: ``python -m fedstill.engine.worker``.

It is told where the data and the configuration are, builds the clients from them, and then
answers one client's work after another. Nothing is pickled: names, paths and message bytes are
all that passes between the processes.
"""

import os
import sys
import threading
import time
import warnings

import torch

from fedstill.engine.client import Work
from fedstill.engine.frames import read_frame, write_answer, write_frame
from fedstill.engine.layout import build_setup
from fedstill.engine.memory import keep_freed_memory

_PROGRESS_SECONDS = 0.2


def main() -> None:
    """Answer work from standard input until it ends."""
    requests = sys.stdin.buffer
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a method prints must not end up among the frames
    end_with_parent()
    keep_freed_memory()
    try:
        setup = build_setup(read_frame(requests)[0])
    except Exception as error:  # the parent says it to the user
        write_frame(replies, {"fatal": f"{type(error).__name__}: {error}"})
        return
    torch.set_num_threads(setup.experiment.engine.threads)
    # The parent shows warnings, each once, however many workers have them.
    warnings.showwarning = lambda message, *_, **__: write_frame(replies, {"note": str(message)})
    while True:
        try:
            header, (message, state) = read_frame(requests)
        except EOFError:
            return
        work = Work(
            header["round"], header["client"], message, state if header["has_state"] else None
        )
        last = 0.0

        def progress(step: int, steps: int) -> None:
            nonlocal last
            if time.monotonic() - last > _PROGRESS_SECONDS:
                last = time.monotonic()
                write_frame(replies, {"step": step, "steps": steps})

        answer = setup.runner.answer(work, progress)
        write_answer(replies, answer)


def end_with_parent() -> None:
    """Stop when the parent is gone, even in the middle of a long computation."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
