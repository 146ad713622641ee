"""Running a recipe: missing cells are run, unfinished ones resumed, failed ones explained."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from fedstill.cells import Watcher, refuse_settings_of_cells, run_or_reuse
from fedstill.config.nested import Table, flat, merged
from fedstill.config.request import check_types
from fedstill.errors import FedstillError, Interrupted, RequestError
from fedstill.report.table import as_markdown
from fedstill.reproduce.recipe import Cell, Measure, Recipe, ScaleName
from fedstill.runs.metrics import Summary

_FLOAT = 4  # bytes


@dataclass(frozen=True)
class Outcome:
    """A cell with our values, one per seed, and the reasons why some are missing."""

    cell: Cell
    values: tuple[float, ...]
    failures: tuple[str, ...]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours less the printed one."""
        if self.mean is None or self.cell.published is None:
            return None
        return self.mean - self.cell.published


def reproduce(
    recipe: Recipe,
    scale: ScaleName,
    seeds: int,
    out: Path,
    extra: Table,
    watcher: Watcher,
) -> list[Outcome]:
    """Run the cells of a scale with the seeds 0, 1, ...; ``extra`` settings are laid over all."""
    if seeds < 1:
        raise RequestError(f"--seeds {seeds}: give 1 or more")
    check_types(extra)  # a wrong key is refused once, not in every cell
    refuse_settings_of_cells(extra)
    cells = recipe.cells(scale)
    _refuse_made_equal(cells, extra)
    outcomes = []
    for place, cell in enumerate(cells):
        values, failures = [], []
        for seed in range(seeds):
            number = place * seeds + seed + 1
            name = cell.name + (f", seed {seed}" if seeds > 1 else "")
            announce = partial(watcher.begun, number, len(cells) * seeds, name)
            request = merged(cell.request, extra, {"seed": seed})
            try:
                summary = run_or_reuse(request, out / cell.folder / f"seed-{seed}", announce)
                values.append(measured(summary, recipe.contents.measure))
            except Interrupted:
                raise
            except FedstillError as error:
                watcher.failed(name, str(error))
                failures.append(f"seed {seed}: {error}")
        outcomes.append(Outcome(cell, tuple(values), tuple(failures)))
    return outcomes


def _refuse_made_equal(cells: Sequence[Cell], extra: Table) -> None:
    """Refuse settings that make two cells the same experiment: one run would stand under two names.

    Cells that are equal without them are the recipe's matter.
    """
    for one, other in combinations(cells, 2):
        same = merged(one.request, extra) == merged(other.request, extra)
        if same and one.request != other.request:
            lost = [
                f"{key} = {value}"
                for key, value in flat(extra).items()
                if _at(one.request, key) != _at(other.request, key)
            ]
            raise RequestError(
                f"{', '.join(lost)}: makes '{one.name}' and '{other.name}' the same experiment; "
                "leave it out, or run one of them with --row and --column"
            )


def _at(table: Any, key: str) -> Any:
    """What a nested table has at a dotted key: a value, a table, or nothing."""
    for part in key.split("."):
        table = table.get(part) if isinstance(table, Mapping) else None
    return table


def measured(summary: Summary, measure: Measure) -> float:
    """What the table is about: accuracy in percent, or floats uploaded per round."""
    if measure == "floats":
        return summary.up_bytes / max(1, summary.rounds_done) / _FLOAT
    value: float | None = getattr(summary, measure)
    if value is None:
        raise RequestError("the run measured no accuracy; lower eval_every")
    return 100 * value


def results(
    recipe: Recipe, scale: ScaleName, outcomes: list[Outcome]
) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table: theirs, ours, and the difference where it means something."""
    form = "{:,.0f}" if recipe.contents.measure == "floats" else "{:.2f}"
    comparable = recipe.scale(scale).comparable

    def number(value: float | None, spread: float | None = None) -> str:
        if value is None:
            return "-"
        return form.format(value) + (f" ± {form.format(spread)}" if spread is not None else "")

    rows = []
    for outcome in outcomes:
        cell, difference = outcome.cell, outcome.difference
        sign = "+" if difference is not None and difference >= 0 else ""
        rows.append(
            [
                cell.row,
                cell.column,
                number(cell.published, cell.spread),
                number(outcome.mean, outcome.spread),
                sign + number(difference) if comparable and difference is not None else "-",
                "; ".join(outcome.failures),
            ]
        )
    return ["row", "column", "published", "ours", "difference", "why not"], rows


def as_document(
    recipe: Recipe,
    scale: ScaleName,
    head: list[str],
    rows: list[list[str]],
    options: Sequence[str] = (),
) -> str:
    """The outcome as a Markdown page; ``options`` of the command that change what is computed."""
    known, part = recipe.contents, recipe.scale(scale)
    command = " ".join((f"fedstill reproduce {recipe.name} --scale {scale}", *options))
    notes = " ".join(filter(None, (known.notes, part.note)))
    parts = [
        f"# {known.title}",
        known.source,
        notes,
        f"    {command}",
        as_markdown(head, rows, texts=2),
    ]
    return "\n\n".join(filter(None, parts))


def as_records(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """The outcome as plain values, for other programs."""
    return [
        {
            "row": outcome.cell.row,
            "column": outcome.cell.column,
            "published": outcome.cell.published,
            "published_spread": outcome.cell.spread,
            "values": list(outcome.values),
            "mean": outcome.mean,
            "spread": outcome.spread,
            "difference": outcome.difference,
            "failures": list(outcome.failures),
        }
        for outcome in outcomes
    ]
