"""How a run on Flower ended, from the ServerApp to whoever started it.

Flower keeps one line about a run that failed: the text of the ServerApp's exception. Our exit code
goes in front of it.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fedstill.deploy.control import Status
from fedstill.errors import FedstillError, Interrupted, RequestError, RunError

_MARK = re.compile(r"fedstill, exit code (\d+): (.*)", re.DOTALL)


class ServerAppFailed(Exception):
    """The text that Flower keeps."""


@contextmanager
def marked_failure() -> Iterator[None]:
    """In the ServerApp: an error that a user can act on carries its exit code."""
    try:
        yield
    except FedstillError as error:
        raise ServerAppFailed(f"fedstill, exit code {error.exit_code}: {error}") from error


def refuse_failure(status: Status, again: str) -> None:
    """Raise what the run ended with, unless it is done."""
    if status.outcome == "completed":
        return
    if status.outcome == "stopped":
        raise Interrupted(f"the run was stopped; {again}")
    found = _MARK.search(status.details)
    if found is None:
        raise RunError(f"the run failed: {status.details or 'its ServerApp ended'}; {again}")
    code, text = int(found[1]), found[2]
    if code == RequestError.exit_code:
        raise RequestError(text)
    if code == Interrupted.exit_code:
        raise Interrupted(f"the run was interrupted; {again}")
    raise RunError(f"{text}; {again}")
