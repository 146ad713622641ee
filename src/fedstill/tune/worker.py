"""A worker process of ``fedstill tune``: ``python -m fedstill.tune.worker``.

It is told which set to judge candidates on, and then judges one after another. After every epoch
it says how things stand and is told whether to go on.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch

from fedstill.engine.frames import read_frame, write_frame
from fedstill.engine.memory import keep_freed_memory
from fedstill.engine.worker import end_with_parent
from fedstill.errors import RequestError
from fedstill.runs.find import run_of
from fedstill.synthetic import load_set
from fedstill.tables import convert
from fedstill.tune.objective import Judge
from fedstill.tune.space import Candidate
from fedstill.tune.vote import electorate


def judge_from(header: dict[str, Any]) -> Judge:
    """The judge that the parent process described."""
    path = Path(header["set"])
    stored = load_set(path)
    voters = electorate(run_of(path), path, stored) if header["vote"] else None
    return Judge(
        stored, header["seed"], header["holdout"], header["repeats"], header["device"], voters
    )


def main() -> None:
    """Judge candidates from standard input until it ends."""
    requests = sys.stdin.buffer
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed must not end up among the frames
    end_with_parent()
    keep_freed_memory()
    torch.set_num_threads(1)

    def go_on(epoch: int, accuracy: float) -> bool:
        write_frame(replies, {"epoch": epoch, "accuracy": accuracy})
        return bool(read_frame(requests)[0]["go_on"])

    judge: Judge | None = None
    header, _ = read_frame(requests)
    sys.path[:] = header["path"]
    while True:
        try:
            candidate = convert(read_frame(requests)[0]["candidate"], Candidate, "candidate")
            judge = judge or judge_from(header)
            verdict = judge.judge(candidate, go_on)
        except EOFError:
            return
        except RequestError as error:
            write_frame(replies, {"refused": str(error)})
        except Exception as error:  # the parent says it to the user
            write_frame(replies, {"failed": f"{type(error).__name__}: {error}"})
        else:
            write_frame(replies, {"verdict": verdict and vars(verdict)})


if __name__ == "__main__":
    main()
