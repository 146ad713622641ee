"""The clients' states of one round as one file: written and forced to disk once, read one by one.

    8 bytes     the length of the index
    index       JSON: for each client where its state begins, how long it is, and its SHA-256
    states      one after another

A checkpoint's manifest has the SHA-256 of the index, which has those of the states: every byte that
is read is checked, and none is hashed twice.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from fedstill.errors import UNREADABLE

_LONGEST_INDEX = 2**30


@dataclass(frozen=True, slots=True)
class Place:
    """Where a state is: a part of a file, or all of it (``size`` None, as older versions wrote)."""

    file: str
    sha256: str
    begin: int = 0
    size: int | None = None

    @property
    def weight(self) -> int:
        """Its bytes, where it shares a file; an empty state counts too."""
        return 0 if self.size is None else self.size + 1

    def read(self, folder: Path) -> bytes | None:
        """The state, if it is there and as it was written."""
        try:
            with (folder / self.file).open("rb") as file:
                file.seek(self.begin)
                data = file.read() if self.size is None else file.read(self.size)
        except OSError:
            return None
        return data if digest(data) == self.sha256 else None


Places = dict[int, Place]
_Row = tuple[Annotated[int, msgspec.Meta(ge=0)], Annotated[int, msgspec.Meta(ge=0)], str]


def pack(name: str, states: Mapping[int, bytes]) -> tuple[bytes, str, Places]:
    """The file called ``name``, the SHA-256 of its index, and where each state is in it."""
    rows: dict[int, _Row] = {}
    begin = 0
    for client, state in states.items():
        rows[client] = (begin, len(state), digest(state))
        begin += len(state)
    index = msgspec.json.encode(rows)
    data = b"".join([len(index).to_bytes(8, "little"), index, *states.values()])
    return data, digest(index), _places(name, index, rows)


def read_index(folder: Path, name: str, sha256: str) -> Places | None:
    """Where each state is in this file, if its index is as it was written."""
    try:
        with (folder / name).open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            index = file.read(min(length, _LONGEST_INDEX))
        if digest(index) != sha256:
            return None
        return _places(name, index, msgspec.json.decode(index, type=dict[int, _Row]))
    except (OSError, *UNREADABLE):
        return None


def _places(name: str, index: bytes, rows: Mapping[int, _Row]) -> Places:
    first = 8 + len(index)
    return {
        client: Place(name, sha256, first + begin, size)
        for client, (begin, size, sha256) in rows.items()
    }


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
