"""``fedstill run``."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from fedstill.cli.progress import ProgressConsole, progress_for
from fedstill.record import Summary
from fedstill.run import run
from fedstill.tables import parse_override
from fedstill.tracking import Observers, tracker
from fedstill.words import in_bytes, in_percent, in_time


def run_command(
    method: Annotated[
        str | None,
        typer.Argument(help="One of `fedstill list methods`, or your own package.module:Class."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="A name of `fedstill list data`, hub:OWNER/NAME, or a path.", show_default="digits"
        ),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder with <name>/train.parquet and test.parquet.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(help="Number of clients.", show_default="10")
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            help="iid, dirichlet:ALPHA, classes:N, quantity:ALPHA or natural.",
            show_default="dirichlet:0.1",
        ),
    ] = None,
    participation: Annotated[
        float | None, typer.Option(help="Share of clients in a round.", show_default="1.0")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.", show_default="20")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A name of `fedstill list models`, or package.module:function.",
            show_default="convnet-small",
        ),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="Where clients run.", show_default="local")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that run clients.", show_default="one a core")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, mps.", show_default="cpu")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Same seed, same bits.", show_default="0")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder.", show_default="runs/METHOD-DATA-001")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file with any of these words and settings.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. method.local_epochs=5."),
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also send metrics to tensorboard or mlflow."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the summary as the last line of output.")
    ] = False,
) -> None:
    """Run one federated experiment.

    METHOD is one of `fedstill list methods`, or your own as package.module:Class.
    With no options: the built-in digits, 10 clients with very different shares of the classes.
    Ctrl-C leaves a run that --resume goes on with.
    """
    watcher = progress_for(ProgressConsole(stderr=True))
    trackers = [tracker(name) for name in track or ()]
    try:
        result = run(
            method,
            data=data,
            data_dir=data_dir,
            clients=clients,
            partition=partition,
            participation=participation,
            rounds=rounds,
            model=model,
            engine=engine,
            workers=workers,
            device=device,
            seed=seed,
            out=out,
            resume=resume,
            config=config,
            set=dict(parse_override(text) for text in set_ or ()),
            observer=Observers(watcher, trackers),
        )
    finally:
        watcher.stop()
    _print_outcome(result.folder, result.summary)
    if json:
        sys.stdout.write(msgspec.json.encode(result.summary).decode() + "\n")


def _print_outcome(folder: Path, summary: Summary) -> None:
    console = Console(soft_wrap=True, highlight=False)
    console.print(
        f"accuracy [bold]{in_percent(summary.accuracy)}[/bold] after {summary.rounds_done} rounds, "
        f"{in_bytes(summary.up_bytes)} up, {in_bytes(summary.down_bytes)} down, "
        f"{in_time(summary.seconds)}"
    )
    console.print(f"run folder: {folder}", markup=False)
    console.print(f"report: {folder / 'report.html'}", markup=False)
