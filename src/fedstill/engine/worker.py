"""A worker process of the local engine: ``python -m fedstill.engine.worker``.

It gets the paths of the data and the configuration, builds the clients from them, and then
answers one client's work after another. Names, paths and message bytes are all that passes between
the processes.
"""

import time
import warnings

import torch

from fedstill.engine.base import decode_work, encode_answer
from fedstill.engine.handover import rebuild
from fedstill.engine.processes import Parent

_PROGRESS_SECONDS = 0.2


def main() -> None:
    """Answer work until the parent has no more."""
    try:
        parent = Parent()
    except EOFError:  # started ahead, and never needed
        return
    try:
        built = rebuild(parent.header)
    except Exception as error:  # the parent reports it to the user
        parent.send({"fatal": f"{type(error).__name__}: {error}"})
        return
    torch.set_num_threads(built.experiment.engine.threads)
    # The parent shows each warning once, however many workers raise it.
    warnings.showwarning = lambda message, *_, **__: parent.send({"note": str(message)})
    last = 0.0

    def progress(step: int, steps: int) -> None:
        nonlocal last
        if time.monotonic() - last > _PROGRESS_SECONDS:
            last = time.monotonic()
            parent.send({"step": step, "steps": steps})

    while True:
        try:
            _, parts = parent.receive()
        except EOFError:
            return
        parent.send({}, encode_answer(built.runner.answer(decode_work(parts), progress)))


if __name__ == "__main__":
    main()
