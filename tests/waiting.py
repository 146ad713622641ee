"""Waiting for something that other processes do: a busy machine is slow, never red."""

import signal
import time
from collections.abc import Callable

FOREVER = 900.0  # seconds: only a process that hangs takes this long


def wait_until(happened: Callable[[], object], what: str, pause: float = 0.05) -> None:
    """Return as soon as it has happened; fail only when nothing will come any more."""
    deadline = time.monotonic() + FOREVER
    while not happened():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(pause)


def heed_interrupts() -> None:
    """For ``preexec_fn``: a job in the background may ignore Ctrl-C, and its children then do."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
