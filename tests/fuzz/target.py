"""What is fuzzed: how a case is made, and what must hold for it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from fedstill.errors import FedstillError

REFUSALS: tuple[type[Exception], ...] = (FedstillError,)

Make = Callable[[Random], Any]
Check = Callable[[Any], None]


@dataclass(frozen=True)
class Target:
    """A reader of something that others write.

    ``prepare`` gets an empty folder and returns two functions. The first makes a case from a
    stream of random numbers. The second reads the case and checks what it got: it returns where
    the value is as it should be, raises a ``FedstillError`` where the case is refused, and
    anything else is a defect.
    """

    name: str
    share: float  # of all cases
    prepare: Callable[[Path], tuple[Make, Check]]


def is_refusal(error: BaseException) -> bool:
    """Whether an error is one that a user is told, in one line that can be printed."""
    if not isinstance(error, REFUSALS):
        return False
    str(error).encode("utf-8", "replace")
    return True
