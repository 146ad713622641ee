"""``fedstill reproduce``."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from fedstill.cli import options
from fedstill.config.nested import merged
from fedstill.config.request import spelled_out
from fedstill.draw.console import Console
from fedstill.errors import Interrupted, RequestError, RunError, did_you_mean
from fedstill.files import write_atomically
from fedstill.reproduce.recipe import SCALES, ScaleName, load_recipe


def reproduce_command(
    recipe: Annotated[str, typer.Argument(help="One of `fedstill list recipes`.")],
    scale: Annotated[
        str,
        typer.Option(
            help="smoke (seconds), cpu (about an hour), cpu-long (a night) or paper (as published)."
        ),
    ] = "smoke",
    seeds: Annotated[int, typer.Option(help="Runs per cell, with seeds 0, 1, ...")] = 1,
    row: Annotated[
        list[str] | None, typer.Option(help="Only this row of the table; may be repeated.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="Only this column; may be repeated.")
    ] = None,
    data_dir: options.DataDir = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the runs.", show_default="reproductions/RECIPE/SCALE"),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting for every cell, e.g. rounds=2."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Run a table or figure of a paper, and show our numbers next to the published ones.

    RECIPE is one of `fedstill list recipes`. Completed cells are not run again, and an interrupted
    one is resumed: after Ctrl-C, the same command computes the rest.
    """
    chosen: ScaleName | None = next((s for s in SCALES if s == scale), None)
    if chosen is None:
        raise RequestError(f"--scale {scale}: no such scale{did_you_mean(scale, SCALES)}")
    known = load_recipe(recipe).part(chosen, row or (), column or ())
    from fedstill.observe.cells import CellLines
    from fedstill.observe.progress import ProgressConsole
    from fedstill.reproduce.running import as_document, as_records, reproduce, results

    folder = out or Path("reproductions") / recipe / scale
    extra = spelled_out(options.overrides(set_))
    if data_dir is not None:
        extra = merged(extra, {"data": {"dir": str(data_dir)}})
    try:
        outcomes = reproduce(
            known, chosen, seeds, folder, extra, CellLines(ProgressConsole(stderr=True))
        )
    except Interrupted:
        raise Interrupted("interrupted; the same command computes the rest") from None
    head, rows = results(known, chosen, outcomes)
    # A part has its own files: it must not overwrite those of the whole table.
    file = folder / ("results-part.md" if row or column else "results.md")
    parts = [f'--row "{name}"' for name in row or ()] + [f'--column "{n}"' for n in column or ()]
    parts += [f"--seeds {seeds}"] * (seeds != 1) + [f"--set {quote(text)}" for text in set_ or ()]
    write_atomically(file, as_document(known, chosen, head, rows, parts).encode())
    write_atomically(file.with_suffix(".json"), msgspec.json.encode(as_records(outcomes)))
    _print(known.contents.title, head, rows, known.scale(chosen).note, file)
    if json:
        options.print_json(as_records(outcomes))
    failed = sum(bool(outcome.failures) for outcome in outcomes)
    if failed:
        raise RunError(f"{failed} of {len(outcomes)} cells are incomplete: see 'why not'")


def _print(title: str, head: list[str], rows: list[list[str]], note: str, file: Path) -> None:
    console = Console(highlight=False)
    shown = head if any(row[-1] for row in rows) else head[:-1]
    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False)
    for name in shown:
        table.add_column(name, justify="right" if name in head[2:5] else "left")
    for row in rows:
        table.add_row(*map(Text, row[: len(shown)]))
    console.print(table)
    if note:
        console.print(note, markup=False)
    console.print(f"results: {file}", markup=False, soft_wrap=True)
