"""A worker process of ``fedstill tune``: ``python -m fedstill.tune.worker``.

It gets the set to judge candidates on, and then judges one after another. After every epoch it
reports the accuracy and is answered whether to continue.
"""

from pathlib import Path
from typing import Any

import torch

from fedstill.config.nested import convert
from fedstill.engine.processes import Parent
from fedstill.errors import RequestError
from fedstill.runs.find import run_of
from fedstill.runs.sets import load_set
from fedstill.tune.objective import Judge
from fedstill.tune.rehearsal import owners_of
from fedstill.tune.space import Candidate
from fedstill.tune.vote import voters_of


def judge_from(header: dict[str, Any]) -> Judge:
    """The judge that the parent process described."""
    path = Path(header["set"])
    stored, run = load_set(path), run_of(path)
    voters = voters_of(run, path, stored) if header["vote"] else None
    owners = owners_of(stored, run) if header["federated"] else None
    return Judge(
        stored,
        header["seed"],
        header["holdout"],
        header["repeats"],
        header["device"],
        voters,
        owners,
    )


def main() -> None:
    """Judge candidates until the parent has no more."""
    parent = Parent()
    torch.set_num_threads(1)

    def should_continue(epoch: int, accuracy: float) -> bool:
        parent.send({"epoch": epoch, "accuracy": accuracy})
        return bool(parent.receive()[0]["go_on"])

    judge: Judge | None = None
    while True:
        try:
            candidate = convert(parent.receive()[0]["candidate"], Candidate, "candidate")
            judge = judge or judge_from(parent.header)
            verdict = judge.judge(candidate, should_continue)
        except EOFError:
            return
        except RequestError as error:
            parent.send({"refused": str(error)})
        except Exception as error:  # the parent reports it to the user
            parent.send({"failed": f"{type(error).__name__}: {error}"})
        else:
            parent.send({"verdict": verdict and vars(verdict)})


if __name__ == "__main__":
    main()
