"""``fedstill tune``: hyper-parameters and architecture on a distilled set."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import fedstill
from fedstill.cli import options
from fedstill.draw.console import Console
from fedstill.draw.numbers import in_bytes, in_percent
from fedstill.runs.place import refuse_unless_set

if TYPE_CHECKING:
    from fedstill.tune import Tuned


def tune_command(
    source: Annotated[
        Path, typer.Argument(metavar="SET", help="A set file, or a run folder (its last round).")
    ],
    trials: Annotated[
        int, typer.Option(min=1, help="Trials in the study, earlier ones included.")
    ] = 50,
    search: Annotated[
        str, typer.Option(help="What is searched: hyper, architecture, both.")
    ] = "both",
    objective: Annotated[
        str,
        typer.Option(
            help="holdout, vote: accuracy on held-out synthetic images, or on the "
            "clients' records, of which only the score is sent."
        ),
    ] = "holdout",
    sampler: Annotated[
        str, typer.Option(help="Optuna's sampler: tpe, random, nsgaii, gp.")
    ] = "tpe",
    pruner: Annotated[
        str, typer.Option(help="Optuna's pruner: median, hyperband, halving, none.")
    ] = "median",
    workers: Annotated[
        int, typer.Option(min=1, help="Worker processes; trials are reproducible with 1 only.")
    ] = 1,
    study: Annotated[
        Path | None,
        typer.Option(
            help="Study file; an existing one is resumed.",
            show_default="OUT/study.journal",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for winner.toml and tune.html.",
            show_default="the study's folder, or runs/tune-DATA-001",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Network for --search hyper.", show_default="the run's"),
    ] = None,
    space: Annotated[
        Path | None, typer.Option(help="TOML file with changes to the search space.")
    ] = None,
    holdout: Annotated[float, typer.Option(help="Fraction of each class to hold out.")] = 0.25,
    repeats: Annotated[
        int, typer.Option(min=1, help="Networks per trial, each with its own split.")
    ] = 1,
    federated: Annotated[
        bool,
        typer.Option(
            "--federated",
            help="Train candidates by FedAvg among clients that hold parts of the set, and search "
            "the local epochs too.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Random seed: same seed, same trials.")] = 0,
    device: options.Device = "cpu",
    json: options.Json = False,
) -> None:
    """Search hyper-parameters and architecture on a distilled set.

    SET is a set file, or a run folder (its last round). Candidates are trained on a part of the set
    and tested on the rest: nothing is sent. The best one is written as a configuration: `fedstill
    run --config winner.toml fedavg`. After Ctrl-C, --study resumes the study.
    """
    refuse_unless_set(source)
    tuned = fedstill.tune(
        source,
        trials=trials,
        search=search,
        objective=objective,
        sampler=sampler,
        pruner=pruner,
        workers=workers,
        study=study,
        out=out,
        model=model,
        space=space,
        holdout=holdout,
        repeats=repeats,
        federated=federated,
        seed=seed,
        device=device,
    )
    _print(tuned)
    if json:
        options.print_json(tuned.summary)


def _print(tuned: "Tuned") -> None:
    from fedstill.tune.progress import describe_candidate

    console = Console(soft_wrap=True, highlight=False)
    counts = ", ".join(f"{number} {state}" for state, number in tuned.trials.items())
    winner = tuned.winner
    lines = [
        f"best: trial {winner.trial}, accuracy {in_percent(winner.value)}, "
        f"{describe_candidate(winner.candidate)}",
        f"trials: {counts}; sent: {in_bytes(tuned.up_bytes)} up, {in_bytes(tuned.down_bytes)} down",
        *(
            [f"privacy: the run and all votes on it have spent epsilon {tuned.epsilon:.2f}"]
            if tuned.epsilon is not None
            else []
        ),
        f"page: {tuned.folder / 'tune.html'}",
        f"next: fedstill run --config {tuned.folder / 'winner.toml'} fedavg",
    ]
    for line in lines:
        console.print(line, markup=False)
