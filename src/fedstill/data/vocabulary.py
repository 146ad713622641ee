"""Vocabularies: lists of tokens that are public and fixed before any client's text is seen.

A list made from the clients' texts would reveal who writes which rare word, before any budget
is counted. So there are two kinds only: the printable ASCII characters, and a file that the user
states to be public (a dictionary, the most frequent words of a published corpus).
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedstill.errors import RequestError

CHARACTERS = "characters"  # the name of the built-in vocabulary
NOTHING = -100  # a label that asks for nothing: the token that follows is not in the vocabulary
_OTHER = "<other>"  # number 0: whatever is not in the list
_CODES = 128
_SHOWN = {"\n": "newline", " ": "space"}
# A run of letters (with apostrophes inside), a run of digits, or a single mark.
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*|\d+|[^\w\s]|_")

Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by number; the first stands for everything else. Characters, or words."""

    tokens: tuple[str, ...]
    words: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The tokens as they are shown."""
        return tuple(_SHOWN.get(token, token) for token in self.tokens)

    @property
    def kind(self) -> str:
        """What a token is called."""
        return "words" if self.words else "characters"

    @property
    def usual_length(self) -> int:
        """Positions of a record: 80 characters as in LEAF, or 20 words."""
        return 20 if self.words else 80

    def encode(self, text: str) -> Tokens:
        """The numbers of a text's tokens, in order."""
        if self.words:
            found = (self._numbers.get(word, 0) for word in split_words(text))
            return np.fromiter(found, dtype=np.int32)
        codes = np.frombuffer(text.encode("utf-32-le", "replace"), dtype="<u4")
        table: Tokens = self._table[np.minimum(codes, _CODES - 1)]
        return table

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}

    @cached_property
    def _table(self) -> Tokens:
        """Token of every ASCII code; the last code (delete, not printable) is "other" too."""
        table = np.zeros(_CODES, dtype=np.int32)
        for number, token in enumerate(self.tokens[1:], start=1):
            table[ord(token)] = number
        return table


def split_words(text: str) -> list[str]:
    """Words, numbers and marks of a text, in lower case."""
    return _WORD.findall(text.lower().replace("\u2019", "'"))


def find_vocabulary(name: str | None) -> Vocabulary:
    """The built-in characters, or the words in a file, one per line."""
    if name is None or name == CHARACTERS:
        printable = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))
        return Vocabulary((_OTHER, *printable), words=False)
    path = Path(name).expanduser()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise RequestError(
            f"data.vocabulary = '{name}': {reason}; give '{CHARACTERS}' or a file of words"
        ) from error
    return _from_lines(path, lines)


def _from_lines(path: Path, lines: list[str]) -> Vocabulary:
    numbers: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        where = f"data.vocabulary = '{path}', line {number}"
        words = split_words(line)
        if not words:
            raise RequestError(f"{where}: an empty vocabulary entry; remove the line")
        if words != [line.strip().lower().replace("\u2019", "'")]:
            raise RequestError(f"{where}: '{line.strip()}' is not one word; write one per line")
        if words[0] in numbers:
            raise RequestError(
                f"{where}: '{words[0]}' is in line {numbers[words[0]]} already; remove one"
            )
        numbers[words[0]] = number
    if not numbers:
        raise RequestError(
            f"data.vocabulary = '{path}': the file is empty; write one word per line"
        )
    return Vocabulary((_OTHER, *numbers), words=True)
