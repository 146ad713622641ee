"""All accesses to each client's records: one file per client, one line per access.

A line is on disk *before* its access. A crash between the two, or a truncated line, therefore
counts an access that may not have happened; an access is never left uncounted. A resumed run reads
the same file: a round that is computed again is counted again.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fedstill.errors import UNREADABLE, BudgetSpent, RunError
from fedstill.files import append_line

MECHANISM = "poisson-sampled gaussian"


@dataclass(frozen=True)
class Access:
    """A line of the ledger."""

    round: int
    mechanism: str
    q: float
    sigma: float
    clip: float
    count: int = 1


class Ledger:
    """One client's ledger. ``most`` is how many accesses the budget allows (``None``: no limit)."""

    def __init__(self, path: Path, rate: float, sigma: float, most: int | None = None) -> None:
        self.path, self.rate, self.sigma, self.most = path, rate, sigma, most
        self.count = 0
        data = path.read_bytes() if path.exists() else b""
        for line in data.splitlines():
            self.count += self._accesses(line)
        self._torn = bool(data) and not data.endswith(b"\n")

    @property
    def room(self) -> float:
        """How many more accesses the budget allows."""
        return float("inf") if self.most is None else self.most - self.count

    def open(self, round: int, clip: float) -> None:
        """Count one access before it is made; raise ``BudgetSpent`` if it must not be made."""
        if self.room < 1:
            raise BudgetSpent(f"the privacy budget allows {self.most} accesses, and all are spent")
        new_file = not self.path.exists()
        if new_file:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        access = Access(round, MECHANISM, self.rate, self.sigma, clip)
        append_line(self.path, (b"\n" if self._torn else b"") + msgspec.json.encode(access))
        self._torn = False
        if new_file:
            _name_to_disk(self.path)
        self.count += 1

    def _accesses(self, line: bytes) -> int:
        try:
            access = msgspec.json.decode(line, type=Access)
        except UNREADABLE:
            return 1  # a truncated or damaged line counts as an access
        if (access.q, access.sigma) != (self.rate, self.sigma):
            raise RunError(
                f"{self.path}: it holds accesses with q {access.q:g} and sigma {access.sigma:g}, "
                f"this run has {self.rate:g} and {self.sigma:g}; restore the settings"
            )
        return max(1, access.count)


def ledger_of(
    folder: Path, client: int, rate: float, sigma: float, most: int | None = None
) -> Ledger:
    """The ledger of one client of the run whose ledgers are in ``folder``."""
    return Ledger(folder / f"client-{client:05d}.jsonl", rate, sigma, most)


def _name_to_disk(path: Path) -> None:
    """Force the new file's directory entry to disk, and that of its folder."""
    for folder in (path.parent, path.parent.parent):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
