"""Errors a user can act on.

The command line turns each kind into an exit code and one line of text; everything
else is a bug and keeps its traceback.
"""

import difflib
from collections.abc import Iterable


class FedstillError(Exception):
    """Base of the errors that are explained to the user."""

    exit_code = 1


class RequestError(FedstillError):
    """The request is wrong: the message says what, and how to correct it (exit code 2)."""

    exit_code = 2


class RunError(FedstillError):
    """The request was valid but the run could not continue (exit code 1)."""


class WireError(FedstillError):
    """A message that is not what its method declared. It never reaches the model."""


class BudgetSpent(FedstillError):
    """One more access to a client's records would exceed the privacy budget: it was not made."""


class Interrupted(FedstillError):
    """The run was stopped from outside and can be resumed (exit code 130)."""

    exit_code = 130


# What parsers raise on text from others: wrong syntax, bad UTF-8, numbers of 5,000 digits, nesting
# without end. (The errors of msgspec, tomllib and json are ValueErrors.)
UNREADABLE = (ValueError, RecursionError)


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """``; did you mean 'x'?`` with the nearest valid name, or the list of all of them."""
    names = {name.lower(): name for name in sorted(valid)}
    near = difflib.get_close_matches(name.lower(), names, n=2, cutoff=0.5)
    if near:
        return "; did you mean " + " or ".join(f"'{names[n]}'" for n in near) + "?"
    return "; valid: " + ", ".join(names.values())
