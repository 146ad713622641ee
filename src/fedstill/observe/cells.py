"""Progress over the cells of a table, each of which is a run."""

import time

from fedstill.draw.console import Console
from fedstill.draw.numbers import duration
from fedstill.observe.observer import Observer
from fedstill.observe.progress import progress_for


class CellLines:
    """Progress over all cells: one line per cell; on a terminal also the current run."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.since, self.computed = time.monotonic(), 0

    def begun(self, number: int, of: int, name: str, *, done: bool) -> Observer:
        line = f"cell {number}/{of}: {name}"
        if done:
            line += " (already done)"
        elif self.computed:
            left = (time.monotonic() - self.since) / self.computed * (of - number + 1)
            line += f" (about {duration(left)} left)"
        self.computed += not done
        self._say(line)
        return progress_for(self.console) if self.console.is_terminal else Observer()

    def failed(self, name: str, reason: str) -> None:
        self._say(f"failed: {name}: {reason}")

    def _say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)
