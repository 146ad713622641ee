"""Running the grid: the cheapest cells first, finished ones reused, until the time is used up."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedstill.cells import OtherSettings, Watcher, finished, run_or_reuse
from fedstill.config.nested import Table, merged
from fedstill.draw.numbers import counted, duration
from fedstill.errors import FedstillError, Interrupted, RequestError
from fedstill.frontier.budget import Deadline, Times, cheapest
from fedstill.frontier.grid import Cell
from fedstill.observe.observer import Observer
from fedstill.observe.trackers import Observers


@dataclass(frozen=True)
class Outcome:
    """A cell with the folders of its complete runs, and why others are missing.

    ``failed``: a run broke off, which a request that does not fit the data is not.
    """

    cell: Cell
    runs: tuple[Path, ...]
    missing: tuple[str, ...]
    failed: bool


def measure(
    cells: Sequence[Cell],
    seeds: int,
    out: Path,
    extra: Table,
    budget: float | None,
    watcher: Watcher,
) -> list[Outcome]:
    """The outcome of every cell with the seeds 0, 1, ...; ``extra`` settings are laid over all."""
    if seeds < 1:
        raise RequestError(f"--seeds {seeds}: give 1 or more")
    work = _Work(cells, seeds, out, extra, watcher)
    work.reuse()
    work.run(Deadline(None if budget is None else time.monotonic() + budget))
    return [
        Outcome(
            cell,
            tuple(work.done[cell][seed] for seed in sorted(work.done[cell])),
            tuple(work.missing[cell]),
            cell in work.failed,
        )
        for cell in cells
    ]


class _Work:
    """What is done, what is still to do, and what cannot be done."""

    def __init__(
        self, cells: Sequence[Cell], seeds: int, out: Path, extra: Table, watcher: Watcher
    ) -> None:
        self.seeds, self.out, self.extra, self.watcher = seeds, out, extra, watcher
        self.pending = {cell: list(range(seeds)) for cell in cells}
        self.done: dict[Cell, dict[int, Path]] = {cell: {} for cell in cells}
        self.missing: dict[Cell, list[str]] = {cell: [] for cell in cells}
        self.failed: set[Cell] = set()
        self.times = Times()
        self.begun, self.all = 0, len(cells) * seeds

    def request(self, cell: Cell, seed: int) -> Table:
        return merged(cell.request, self.extra, {"seed": seed})

    def path(self, cell: Cell, seed: int) -> Path:
        return self.out / cell.folder / f"seed-{seed}"

    def announce(self, cell: Cell, seed: int, *, done: bool) -> Observer:
        self.begun += 1
        name = cell.name + (f", seed {seed}" if self.seeds > 1 else "")
        return self.watcher.begun(self.begun, self.all, name, done=done)

    def reuse(self) -> None:
        """Take what earlier commands have finished; refuse what cannot be run at all."""
        for cell in self.pending:
            for seed in range(self.seeds):
                try:
                    summary = finished(self.request(cell, seed), self.path(cell, seed))
                except OtherSettings:
                    raise
                except FedstillError as error:
                    self.give_up(cell, error)
                    break
                if summary is not None:
                    self.announce(cell, seed, done=True).stop()
                    self.keep(cell, seed, summary.seconds)

    def run(self, deadline: Deadline) -> None:
        """Run the rest, the cheapest first, as long as there is time."""
        while (found := cheapest(self.pending, self.times)) is not None:
            cell, seed, expected = found
            if expected > deadline.left:
                self.leave_out()
                return
            try:
                summary = run_or_reuse(
                    self.request(cell, seed),
                    self.path(cell, seed),
                    lambda *, done, cell=cell, seed=seed: Observers(
                        [self.announce(cell, seed, done=done), deadline]
                    ),
                )
                self.keep(cell, seed, summary.seconds)
            except Interrupted:
                if not deadline.passed:
                    raise
                self.leave_out()
                return
            except FedstillError as error:
                self.give_up(cell, error)

    def keep(self, cell: Cell, seed: int, seconds: float) -> None:
        self.pending[cell].remove(seed)
        self.done[cell][seed] = self.path(cell, seed)
        self.times.add(cell, max(seconds, 1e-3))

    def give_up(self, cell: Cell, error: FedstillError) -> None:
        """The other seeds of the cell would end in the same way."""
        self.watcher.failed(cell.name, str(error))
        self.missing[cell].append(str(error))
        if not isinstance(error, RequestError):
            self.failed.add(cell)
        self.begun += len(self.pending[cell])
        self.pending[cell].clear()

    def leave_out(self) -> None:
        """What the budget has no time for."""
        for cell, seeds in self.pending.items():
            if seeds:
                needed = duration(self.times.expected(cell) * len(seeds))
                runs = counted(len(seeds), "run")
                self.missing[cell].append(f"no time left for {runs} (about {needed})")
