"""Text that others wrote, made harmless before a person or a log gets it.

An error of a client, the name of a class or of a file may hold escape sequences. A terminal obeys
them: they recolour or overwrite lines, change the window's title, or write to the clipboard.
"""

import re

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
