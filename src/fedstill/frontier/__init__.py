"""``fedstill.frontier``: accuracy against uploaded bytes, for many methods on one partition."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstill.build import partitioned
from fedstill.cells import Watcher, refuse_settings_of_cells
from fedstill.config import resolve_partitioning, spelled_out
from fedstill.config.nested import Table, merged, nested
from fedstill.config.request import check_types
from fedstill.data import load
from fedstill.draw.numbers import counted
from fedstill.errors import Interrupted, RequestError
from fedstill.frontier.budget import seconds_in
from fedstill.frontier.grid import cells_of, narrowed, read_grid, refuse_settings_of_lines
from fedstill.frontier.page import write_frontier
from fedstill.frontier.points import Measured, points_of
from fedstill.frontier.result import Frontier
from fedstill.frontier.running import Outcome, measure
from fedstill.observe.cells import CellLines
from fedstill.observe.observer import Observer
from fedstill.observe.progress import ProgressConsole

__all__ = ["Frontier", "frontier"]

_OF_THE_PARTITION = ("data", "partition", "clients", "allow_empty_clients")


class _Silent:
    """Watches nothing."""

    def begun(self, number: int, of: int, name: str, *, done: bool) -> Observer:
        return Observer()

    def failed(self, name: str, reason: str) -> None: ...


def frontier(
    *,
    data: str | Path | None = None,
    data_dir: str | Path | None = None,
    clients: int | None = None,
    partition: str | None = None,
    model: str | None = None,
    methods: Sequence[str] = (),
    seeds: int = 3,
    budget: str | float | None = None,
    grid: str | Path | Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    workers: int | None = None,
    set: Mapping[str, Any] | None = None,
    watcher: Watcher | None = None,
    progress: bool = True,
) -> Frontier:
    """Measure accuracy against uploaded bytes; options as ``fedstill frontier``.

    ``budget``: seconds, or a text such as ``"1h"``; the cheapest cells are run first. ``methods``:
    only these. ``grid``: a TOML file or a table of lines, instead of the package's. ``set``:
    settings for every cell, except those that a line sets or varies. Runs in ``out`` that are
    complete are reused.

    >>> fedstill.frontier(data="digits", methods=["real", "analytic"], budget="5min").rows
    """
    limit = seconds_in(budget)
    chosen = narrowed(read_grid(grid), [methods] if isinstance(methods, str) else methods)
    options = {
        "data.name": None if data is None else str(data),
        "data.dir": None if data_dir is None else str(data_dir),
        "clients": clients,
        "partition": partition,
        "model": model,
        "engine.workers": workers,
    }
    common = spelled_out(nested({k: v for k, v in options.items() if v is not None}))
    given = nested(set or {})
    extra = spelled_out(given)
    refuse_settings_of_cells(extra)
    refuse_settings_of_lines(given, chosen)
    where, name = _checked(merged(common, extra))
    folder = Path(out) if out is not None else Path("frontiers") / where
    shown = watcher or (CellLines(ProgressConsole(stderr=True)) if progress else _Silent())
    try:
        outcomes = measure(cells_of(chosen, common), seeds, folder, extra, limit, shown)
    except Interrupted:
        raise Interrupted("interrupted; the same command runs the rest") from None
    points = tuple(points_of(outcomes))
    found = Frontier(
        title=f"Accuracy against uploaded bytes: {name}",
        points=points,
        left_out=tuple(f"{o.cell.name}: {why}" for o in outcomes for why in _missing(o, points)),
        failed=sum(outcome.failed for outcome in outcomes),
        # A part has its own files: it must not replace those of the whole grid.
        page=folder / ("frontier-part.html" if methods else "frontier.html"),
    )
    _refuse_nothing(found, outcomes)
    write_frontier(found)
    return found


def _checked(request: Table) -> tuple[str, str]:
    """A folder's name and a title for this partition; data that cannot be used, and settings that
    do not exist, are refused before any cell is tried."""
    check_types(request)
    how = resolve_partitioning({k: v for k, v in request.items() if k in _OF_THE_PARTITION})
    dataset = load(how.data)
    number = partitioned(how, dataset).clients
    folder = "".join(c if c.isalnum() or c in ".-" else "-" for c in dataset.name.lower())
    rule = how.partition.replace(":", "-")
    return f"{folder}-{rule}", f"{dataset.name}, {how.partition}, {counted(number, 'client')}"


def _missing(outcome: Outcome, points: Sequence[Measured]) -> tuple[str, ...]:
    """Why a cell has fewer runs than seeds, or none that can be shown."""
    if not outcome.runs or any(point.cell is outcome.cell for point in points):
        return outcome.missing
    where = ", ".join(map(str, outcome.runs))
    why = f"no round is in the metrics of all its runs; remove {where} to run it again"
    return (*outcome.missing, why)


def _refuse_nothing(found: Frontier, outcomes: Sequence[Outcome]) -> None:
    if not found.points:
        reasons = dict.fromkeys(why for outcome in outcomes for why in _missing(outcome, ()))
        raise RequestError(f"frontier: nothing was measured: {'; '.join(list(reasons)[:3])}")
