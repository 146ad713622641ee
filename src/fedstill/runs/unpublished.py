"""What a private run computes from records outside its releases, kept apart from the rest.

Everything else in the folder of a private run may be published. These may not: how records are
partitioned, sums over the data, tracebacks that may quote records. Resuming and votes need them.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fedstill.errors import UNREADABLE, RunError
from fedstill.files import write_atomically

FOLDER = "unpublished"
PARTITION = "partition.safetensors"
ERRORS = "errors.log"
_DIGESTS = "digests.json"
_NOTE = b"""Never publish this folder.

Its files are computed from the records themselves, without noise: they are not covered by the
privacy guarantee of this run. They stay on the machine that holds the records, where
`fedstill run --resume` and `fedstill tune --objective vote` need them.
"""


@dataclass(frozen=True)
class Digests:
    """What a run was computed from. Of a public run the summary has them."""

    data_sha256: str
    partition_sha256: str


def set_apart(run: Path, digests: Digests) -> Path:
    """The folder for what is never published, with these digests.

    What an earlier version left among the files of the run is moved there or removed.
    """
    folder = run / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "NOTE.txt", _NOTE)
    write_atomically(folder / _DIGESTS, msgspec.json.encode(digests) + b"\n")
    for name in (PARTITION, ERRORS):
        if (run / name).exists():
            os.replace(run / name, folder / name)
    for counts in ("holdings.json", "confusion.json"):
        (run / counts).unlink(missing_ok=True)
    return folder


def read_digests(run: Path) -> Digests | None:
    """The digests that were set apart; ``None`` where the summary has them."""
    path = run / FOLDER / _DIGESTS
    try:
        return msgspec.json.decode(path.read_bytes(), type=Digests)
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        raise RunError(f"{path}: {error}") from error
