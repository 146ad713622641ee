"""Limits that are enforced while a node computes."""

import resource
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from fedstill.engine.flower.codes import Refusal

T = TypeVar("T")


def limit_memory(most: int) -> None:
    """At most so many bytes of memory: an allocation beyond it fails, and the node stays up.

    For the rest of the process, which has one message: a turn that was given up may go on in it.
    """
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, hard))


class _Outcome(Generic[T]):
    value: T
    error: BaseException | None = None


def within_seconds(seconds: float, function: Callable[[], T]) -> T:
    """The function's result, or a refusal when it takes too long.

    It then continues in its thread until the process ends: Flower's nodes have one per message.
    """
    outcome: _Outcome[T] = _Outcome()

    def compute() -> None:
        try:
            outcome.value = function()
        except BaseException as error:
            outcome.error = error

    thread = threading.Thread(target=compute, daemon=True, name="turn")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise Refusal("limit", f"the turn takes longer than max-seconds = {seconds:g}")
    if outcome.error is not None:
        raise outcome.error
    return outcome.value
