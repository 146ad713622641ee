"""All accesses to each client's records: one file per client, one line per access or per turn.

A line is on disk *before* its accesses. A crash between the two, or a truncated line, therefore
counts accesses that may not have been made; an access is never left uncounted. A resumed run reads
the same file: a round that is computed again is counted again.

Several processes and threads may count in one ledger at once (rounds of several servers, a vote
beside a round). Counting is one operation under the file's lock: read what is there, check the
budget, append, force to disk. Every line carries the total so far, so that only the end of the file
is read.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from fedstill.errors import UNREADABLE, BudgetSpent, RunError

MECHANISM = "poisson-sampled gaussian"
_PREFIX = "client-"
_END = 4096  # bytes of a file's end that are read first: some twenty lines


@dataclass(frozen=True)
class Access:
    """A line of the ledger: ``count`` accesses, after which there were ``total`` in all.

    Lines of older ledgers have no total.
    """

    round: int
    mechanism: str
    q: float
    sigma: float
    clip: float
    count: int = 1
    total: int | None = None


class Counter(Protocol):
    """What a door counts its accesses with: a ledger, or accesses counted in advance."""

    def open(self, round: int, clip: float) -> None:
        """Count one access before it is made; raise ``BudgetSpent`` if it must not be made."""
        ...


class Ledger:
    """One client's ledger. ``most`` is how many accesses the budget allows (``None``: no limit)."""

    def __init__(self, path: Path, rate: float, sigma: float, most: int | None = None) -> None:
        self.path, self.rate, self.sigma, self.most = path, rate, sigma, most
        _ = self.count  # a ledger of another mechanism is refused at once

    @property
    def count(self) -> int:
        """How many accesses are on disk now, whoever made them."""
        try:
            with self.path.open("rb") as file, _locked(file, fcntl.LOCK_SH):
                return self._read(file)[0]
        except FileNotFoundError:
            return 0

    @property
    def room(self) -> float:
        """How many more accesses the budget allows."""
        return float("inf") if self.most is None else self.most - self.count

    def open(self, round: int, clip: float) -> None:
        """Count one access before it is made; raise ``BudgetSpent`` if it must not be made."""
        self._count(round, clip, 1)

    def reserve(self, round: int, clip: float, accesses: int) -> "Reservation":
        """Count all accesses of a turn, or none of them and raise ``BudgetSpent``."""
        self._count(round, clip, accesses)
        return Reservation(accesses)

    def _count(self, round: int, clip: float, accesses: int) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file, _locked(file, fcntl.LOCK_EX):
            before, torn = self._read(file)
            if self.most is not None and before + accesses > self.most:
                raise BudgetSpent(
                    f"the privacy budget allows {self.most} accesses, {before} are made and "
                    f"{accesses} more are requested"
                )
            total = before + accesses
            access = Access(round, MECHANISM, self.rate, self.sigma, clip, accesses, total)
            file.write((b"\n" if torn else b"") + msgspec.json.encode(access) + b"\n")
            file.flush()
            os.fsync(file.fileno())
            if not before:
                _name_to_disk(self.path)

    def _read(self, file: BinaryIO) -> tuple[int, bool]:
        """The accesses in the file, and whether its last line is truncated.

        A truncated or damaged line counts as much as the line before it, and at least once.
        """
        size = file.seek(0, os.SEEK_END)
        length = min(_END, size)
        while True:
            file.seek(size - length)
            data = file.read(length)
            whole = length == size
            # Unless it is the whole file, what is read begins somewhere in a line.
            lines = data.splitlines() if whole else data.splitlines()[1:]
            if (count := self._total(lines, whole)) is not None:
                return count, bool(data) and not data.endswith(b"\n")
            length = min(2 * length, size)

    def _total(self, lines: list[bytes], whole: bool) -> int | None:
        """The accesses up to the last of these lines; ``None`` if earlier lines are needed.

        A total never takes back what the lines before it have counted.
        """
        total: int | None = 0 if whole else None
        previous = 1
        for line in lines:
            access = self._access(line)
            previous = previous if access is None else max(1, access.count)
            if total is not None:
                total += previous
            if access is not None and access.total is not None:
                total = max(access.total, total or previous)
        return total

    def _access(self, line: bytes) -> Access | None:
        try:
            access = msgspec.json.decode(line, type=Access)
        except UNREADABLE:
            return None
        if (access.q, access.sigma) != (self.rate, self.sigma):
            raise RunError(
                f"{self.path}: it holds accesses with q {access.q:g} and sigma {access.sigma:g}, "
                f"this run has {self.rate:g} and {self.sigma:g}; restore the settings"
            )
        return access


class Reservation:
    """Accesses that were counted together, before any record was opened."""

    def __init__(self, accesses: int) -> None:
        self._left = accesses

    def open(self, round: int, clip: float) -> None:
        """Use one of them; raise ``BudgetSpent`` if none is left."""
        if not self._left:
            raise BudgetSpent("the turn makes more accesses than its method declares")
        self._left -= 1


class LargestCount:
    """The accesses of the client of a run that has made the most.

    After every round it is asked for, and among 10,000 clients few have taken part: only ledgers
    that have changed since are read. A count once seen is never taken back.
    """

    def __init__(self, folder: Path, rate: float, sigma: float) -> None:
        self._folder, self._rate, self._sigma = folder, rate, sigma
        self._seen: dict[str, tuple[int, int]] = {}
        self._largest = 0

    def now(self) -> int:
        """The largest count on disk, whoever made the accesses."""
        if not self._folder.exists():
            return self._largest
        with os.scandir(self._folder) as files:
            for file in files:
                state = (file.stat().st_size, file.stat().st_mtime_ns)
                if file.name.startswith(_PREFIX) and self._seen.get(file.name) != state:
                    count = Ledger(Path(file.path), self._rate, self._sigma).count
                    self._largest = max(self._largest, count)
                    self._seen[file.name] = state  # as before the reading: what came since is seen
        return self._largest


def ledger_of(
    folder: Path, client: int, rate: float, sigma: float, most: int | None = None
) -> Ledger:
    """The ledger of one client of the run whose ledgers are in ``folder``."""
    return Ledger(folder / f"{_PREFIX}{client:05d}.jsonl", rate, sigma, most)


@contextmanager
def _locked(file: BinaryIO, how: int) -> Iterator[None]:
    """Hold the file's lock. It belongs to this opening of the file: threads exclude each other."""
    fcntl.flock(file, how)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def _name_to_disk(path: Path) -> None:
    """Force the new file's directory entry to disk, and that of its folder."""
    for folder in (path.parent, path.parent.parent):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
