"""A cell of a table: one experiment in a folder of its own, run once and then reused."""

from contextlib import suppress
from pathlib import Path
from typing import Protocol

from fedstill.config import changed_keys, resolve, spelled_out
from fedstill.config.nested import Table, flat
from fedstill.errors import FedstillError, RequestError
from fedstill.execute import execute
from fedstill.observe.observer import Observer
from fedstill.runs.folder import RunFolder
from fedstill.runs.metrics import Summary

_UNFINISHED = ("running", "failed", "interrupted")
_SOLVED_FOR = "privacy.sigma"  # a run adds it to its configuration where only epsilon was given
_OF_THE_CELL = {
    "seed": "the runs of a cell have the seeds 0, 1, ... (--seeds says how many)",
    "method.name": "every cell has its own method, which it is named for",
}


class Watcher(Protocol):
    """Shows the progress over all cells."""

    def begun(self, number: int, of: int, name: str, *, done: bool) -> Observer:
        """A cell's turn, or that it was ``done`` before; gives the watcher of its run."""
        ...

    def failed(self, name: str, reason: str) -> None:
        """A cell has no value, for this reason."""
        ...


class OtherSettings(RequestError):
    """The folder holds a run with other settings."""


class Announce(Protocol):
    """Tells that a cell is begun, or was ``done`` before; gives the watcher of its run."""

    def __call__(self, *, done: bool) -> Observer: ...


def refuse_settings_of_cells(settings: Table, place: str = "") -> None:
    """Refuse what the table itself sets: it would be ignored, or a cell would have a wrong name."""
    given = flat(spelled_out(settings))
    for key, why in _OF_THE_CELL.items():
        if key in given:
            raise RequestError(f"{place}{key} = {given[key]}: {why}; leave it out")


def finished(request: Table, path: Path) -> Summary | None:
    """The summary of the run that the request asks for, if it is in this folder and complete.

    A run with other settings is refused: it is neither reused nor overwritten.
    """
    folder = RunFolder(path)
    experiment = resolve(request)
    if not folder.holds_run:
        return None
    changed = changed_keys(folder.read_config(), experiment.table)
    if experiment.privacy is not None and experiment.privacy.sigma is None:
        changed = [key for key in changed if key != _SOLVED_FOR]
    if changed:
        raise OtherSettings(
            f"{path}: was run with other settings ({', '.join(changed[:3])}); remove it, or "
            "name another --out"
        )
    with suppress(FedstillError):  # no summary yet: the run is resumed
        summary = folder.read_summary()
        if summary.status not in _UNFINISHED:
            return summary
    return None


def run_or_reuse(request: Table, path: Path, announce: Announce) -> Summary:
    """Run the request in this folder, resume the run that was begun there, or reuse its result."""
    summary = finished(request, path)
    observer = announce(done=summary is not None)
    if summary is not None:
        return summary
    try:
        resume = RunFolder(path).holds_run
        return execute(request, out=path, resume=resume, observer=observer).summary
    finally:
        observer.stop()
