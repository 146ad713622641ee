"""``fedstill frontier``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from fedstill.cli import options
from fedstill.config.nested import parse_override
from fedstill.draw.console import Console
from fedstill.draw.numbers import counted, in_percent
from fedstill.errors import RunError

if TYPE_CHECKING:
    from fedstill.frontier import Frontier

_GAP, _NAME = 2, 16  # between columns; room for a name, at least
_LEFT_OUT = 5  # reasons that are printed; a short --budget can have dozens, all much the same
# Given up in this order: without their rounds, rows of one cell are told apart by bytes alone.
_SPARE = ("seeds", "95% interval", "rounds")


def frontier_command(
    data: Annotated[
        str | None,
        typer.Option(help="A name of `fedstill list data`, or a path.", show_default="digits"),
    ] = None,
    data_dir: options.DataDir = None,
    clients: options.Clients = None,
    partition: options.Partition = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A name of `fedstill list models`, for methods without a network of their own.",
            show_default="convnet-small",
        ),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Only this method of the grid; may be repeated.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs per cell, with seeds 0, 1, ...")] = 3,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Time for the runs, such as 30min, 1h or 1h30min: the cheapest cells first.",
            show_default="none",
        ),
    ] = None,
    grid: Annotated[
        Path | None, typer.Option(help="TOML file with the lines to measure, instead of ours.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes.", show_default="one per core")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the runs.", show_default="frontiers/DATA-PARTITION"),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting for every cell that no line has itself."
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Measure accuracy against uploaded bytes, for many methods on one partition.

    Sets of images at several bits, weights, masked updates and statistics, with and without
    privacy, and `real`, which sends records. Writes a page, a table and a figure. Complete runs are
    reused: after Ctrl-C, or with a larger --budget, the same command runs the rest.
    """
    from fedstill.frontier import frontier

    found = frontier(
        data=data,
        data_dir=data_dir,
        clients=clients,
        partition=partition,
        model=model,
        methods=method or (),
        seeds=seeds,
        budget=budget,
        grid=grid,
        out=out,
        workers=workers,
        set=dict(parse_override(text) for text in set_ or ()),
    )
    _print(found)
    if json:
        options.print_json(found.records())
    if found.failed:
        raise RunError(f"{counted(found.failed, 'cell')} failed: see 'left out'")


def _print(found: "Frontier") -> None:
    from fedstill.frontier.result import HEAD, NOTE

    console = Console(highlight=False, soft_wrap=True)
    shown, spared = _fitting(found, console.width)
    table = Table(title=Text(found.title), title_justify="left", box=None, pad_edge=False)
    for number in shown:
        table.add_column(HEAD[number], justify="right" if number else "left", no_wrap=number > 0)
    for row in found.rows:
        table.add_row(*(Text(row[number]) for number in shown))
    console.print(table, soft_wrap=False)
    console.print(NOTE, markup=False)
    if spared:
        console.print(f"no room for: {', '.join(spared)} (in {found.page.stem}.csv)", markup=False)
    _print_budgets(found, console)
    told = found.left_out if found.failed else found.left_out[:_LEFT_OUT]
    for why in told:
        console.print(f"left out: {why}", markup=False)
    if more := len(found.left_out) - len(told):
        where = f"{found.page.stem}.md"
        console.print(f"left out: {counted(more, 'more cell')} (in {where})", markup=False)
    console.print(f"page: {found.page} (and files next to it)", markup=False)


def _print_budgets(found: "Frontier", console: Console) -> None:
    """The accuracies of the best of each kind within a budget. Their methods need more room."""
    from fedstill.frontier.result import BUDGET_HEAD, BUDGET_NOTE

    table = Table(box=None, pad_edge=False)
    heads, left = [BUDGET_HEAD], console.width - len(BUDGET_HEAD)
    for group in found.groups:
        left -= _GAP + max(len(group), len(in_percent(1.0)))
        if left < 0:
            break
        heads.append(group)
    for head in heads:
        table.add_column(Text(head), justify="right", no_wrap=True)
    for budget, best in found.best_by_budget:
        accuracies = (in_percent(point.accuracy if point else None) for point in best)
        table.add_row(*(Text(text) for text, _ in zip((budget, *accuracies), heads, strict=False)))
    where = f"{found.page.stem}.md"
    console.print(f"\nThe best of each kind within a budget (methods: {where})", markup=False)
    console.print(table, soft_wrap=False)
    if others := found.groups[len(heads) - 1 :]:
        console.print(f"no room for: {', '.join(others)} (in {where})", markup=False)
    console.print(f"{BUDGET_NOTE}\n", markup=False)


def _fitting(found: "Frontier", width: int) -> tuple[list[int], list[str]]:
    """The columns that a terminal has room for, beside the names, and the heads of the others.

    Intervals that no point has, because of one seed, are in neither.
    """
    from fedstill.frontier.result import HEAD

    widths = [max(map(len, column)) for column in zip(HEAD, *found.rows, strict=True)]
    shown, spared = list(range(len(HEAD))), []
    spare = list(_SPARE)
    if all(point.interval is None for point in found.points):
        spare.remove("95% interval")
        shown.remove(HEAD.index("95% interval"))
    for head in spare:
        if width - sum(widths[n] + _GAP for n in shown[1:]) >= min(widths[0], _NAME):
            break
        shown.remove(HEAD.index(head))
        spared.append(head)
    return shown, spared
