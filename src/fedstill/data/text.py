"""Texts of many owners as records for a language model.

An owner's text is cut into windows of ``length`` tokens that do not overlap. Such a window is a
record; its labels are the tokens that follow, position by position. Nothing is padded: what is
left over at the end is dropped, and so is an owner whose text fills no window.

Without an official test split, the last fifth of every owner's windows is held out: the end of
the text and not a random choice, for neighbouring windows are of one speech.
"""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedstill.data.decoded import Decoded
from fedstill.data.labels import check_names
from fedstill.data.vocabulary import NOTHING, Tokens, Vocabulary
from fedstill.errors import RequestError
from fedstill.records import Split

TEXT_COLUMNS = ("text", "content", "body", "x")
NEXT_COLUMN = "y"  # in LEAF's Shakespeare: the character that follows the window ``x``
_HELD_OUT = 5  # one window in five
_SPEAKER = re.compile(r"\S[^\n:]{0,60}:")  # a line by itself before a speech

Texts = Mapping[str, str]  # by owner


def read_plays(path: Path) -> dict[str, str]:
    """A plain text by speaker; a text without speakers is one nameless owner's.

    A speech is a paragraph whose first line is the speaker and a colon; a paragraph without such
    a line continues the speech before it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{path}: not UTF-8 text (at byte {error.start})") from error
    speeches: dict[str, list[str]] = {}
    speaker = ""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        heading, _, speech = paragraph.partition("\n")
        if _SPEAKER.fullmatch(heading.strip()):
            speaker = heading.strip()[:-1]
        else:
            speech = paragraph
        speeches.setdefault(speaker, []).append(speech.strip("\n") + "\n")
    return {who: "".join(parts) for who, parts in speeches.items()}


def join_posts(rows: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Pairs of an owner and a text: every owner's texts, one after the other."""
    posts: dict[str, list[str]] = {}
    for who, text in rows:
        posts.setdefault(who, []).append(text + "\n")
    return {who: "".join(parts) for who, parts in posts.items()}


def join_windows(rows: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """LEAF's rows of owner, window and next character, the texts put together again.

    There the window moves by one character per row. Used as they are, the rows would hold every
    character eighty times, on both sides of any split.
    """
    parts: dict[str, list[str]] = {}
    expected: dict[str, str] = {}
    for who, window, following in rows:
        goes_on = expected.get(who) == window
        parts.setdefault(who, []).append(following if goes_on else window + following)
        expected[who] = (window + following)[1:]
    return {who: "".join(pieces) for who, pieces in parts.items()}


def decode_texts(
    train: Texts, test: Texts | None, vocabulary: Vocabulary, length: int, place: str
) -> Decoded:
    """Both splits as records. An owner with too little text is left out, and a warning says how
    many are."""
    windows = {who: _windows(vocabulary.encode(text), length) for who, text in train.items()}
    owners = sorted(who for who, found in windows.items() if len(found))
    check_names(owners, place)
    if not owners:
        raise RequestError(
            f"{place}: no text is longer than data.sequence_length = {length} "
            f"{vocabulary.kind}; make it smaller"
        )
    if len(owners) < len(windows):
        warnings.warn(
            f"{place}: {len(windows) - len(owners)} of {len(windows)} speakers have no more than "
            f"{length} {vocabulary.kind} of text and are left out",
            stacklevel=2,
        )
    if test is None:
        held = {who: len(windows[who]) // _HELD_OUT for who in owners}
        kept = [windows[who][: len(windows[who]) - held[who]] for who in owners]
        held_out = [windows[who][len(windows[who]) - held[who] :] for who in owners]
    else:
        kept = [windows[who] for who in owners]
        held_out = [_windows(vocabulary.encode(test.get(who, "")), length) for who in owners]
    if not any(map(len, held_out)):
        raise RequestError(
            f"{place}: no test text: no one has {_HELD_OUT} windows of data.sequence_length = "
            f"{length} {vocabulary.kind}; make it smaller"
        )
    named = owners != [""]
    return Decoded(
        _split(kept, named),
        _split(held_out, named),
        vocabulary.names,
        tuple(owners) if named else (),
    )


def column_values(batches: Iterable[object], column: str, place: str) -> Iterator[str]:
    """The strings of a column, in order; ``batches`` are arrow arrays."""
    first = 0
    for chunk in batches:
        try:
            values = chunk.to_pylist()  # type: ignore[attr-defined]
        except UnicodeDecodeError as error:
            raise RequestError(f"{place}: column '{column}' is not UTF-8 text") from error
        for row, value in enumerate(values, start=first):
            where = f"{place}, row {row} (counting from 0): '{column}'"
            if value is None:
                raise RequestError(f"{where} is empty (null)")
            if not isinstance(value, str | int | float):
                raise RequestError(f"{where} holds neither a text nor a number")
            yield str(value)
        first += len(values)


def _windows(tokens: Tokens, length: int) -> NDArray[np.int32]:
    """Windows [n, length + 1] of tokens: the last of each is the first of the next."""
    number = max(0, (len(tokens) - 1) // length)
    rows = np.arange(number)[:, None] * length + np.arange(length + 1)
    windows: NDArray[np.int32] = tokens[rows]
    return windows


def _split(windows: Sequence[NDArray[np.int32]], named: bool) -> Split:
    together = torch.from_numpy(np.concatenate(windows))
    labels = together[:, 1:].long()
    owners = torch.arange(len(windows)).repeat_interleave(torch.tensor([len(w) for w in windows]))
    return Split(
        together[:, :-1].contiguous(),
        labels.where(labels > 0, NOTHING),  # nobody should learn to say "other"
        owners if named else None,
    )
