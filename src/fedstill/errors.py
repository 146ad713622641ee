"""Errors a user can act on, and text that others wrote, made harmless.

The command line turns each kind of error into an exit code and one line of text; everything
else is a bug and keeps its traceback.

An error of a client, the name of a class or of a file may hold escape sequences. A terminal obeys
them: they recolour or overwrite lines, change the window's title, or write to the clipboard. So
such text goes through ``printable`` or ``one_line`` before a person or a log gets it.
"""

import difflib
import re
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
    near = near or [full for full in names if _abbreviates(name.lower(), full)][:2]
    if near:
        return "; did you mean " + " or ".join(f"'{names[n]}'" for n in near) + "?"
    return "; valid: " + ", ".join(names.values())


def _abbreviates(short: str, name: str) -> bool:
    """Whether ``short`` is a part of the name, or the initials of parts: lr, bs, ipc."""
    parts = re.split("[_-]", name)
    initials = "".join(part[:1] for part in parts)
    return short in parts or (len(short) > 1 and short in initials)


_ESCAPES = re.compile(
    # A string for the terminal (title, clipboard, link) up to its end; each scan stops at the next
    # control character, so that the time is linear in the text.
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # a command: colour, place of the cursor, erasing
    r"|\x1b[ -/]*[0-~]"
)
# Control characters but for tab and newline, marks that reverse the direction of text, and halves
# of characters that no encoding can write.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_MOST = 2000  # characters of one line


def printable(text: str) -> str:
    """The text without escape sequences; other control characters are shown as U+FFFD."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub("\ufffd", _ESCAPES.sub("", text.replace("\r\n", "\n")))


def is_printable(text: str) -> bool:
    """Whether nothing in the text has to be taken out, and it is one line."""
    return printable(text) == text and "\n" not in text


def one_line(text: str) -> str:
    """The same on one line, cut off where it is very long."""
    line = printable(" ".join(filter(None, map(str.strip, text.splitlines())))).strip()
    return line if len(line) <= _MOST else f"{line[: _MOST - 3]}..."
