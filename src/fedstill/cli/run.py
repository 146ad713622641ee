"""``fedstill run``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import fedstill
from fedstill.cli import options
from fedstill.config.early import refuse_early
from fedstill.config.nested import Table, merged, parse_override
from fedstill.config.request import requested
from fedstill.draw.console import Console
from fedstill.draw.numbers import counted, in_bytes, in_percent, in_time
from fedstill.engine.ahead import started_ahead, workers_expected
from fedstill.runs.place import refuse_unless_free, resumable

if TYPE_CHECKING:
    from fedstill.runs.metrics import RoundMetrics, Summary


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
    data_dir: options.DataDir = None,
    clients: options.Clients = None,
    partition: options.Partition = None,
    participation: Annotated[
        float | None,
        typer.Option(help="Fraction of the clients in each round.", show_default="1.0"),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.", show_default="20")] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Privacy budget per client; the noise is chosen to stay within it."),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="The budget's delta.", show_default="1e-5")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A name of `fedstill list models`, or package.module:function.",
            show_default="convnet-small; mlp for tables, gru for text",
        ),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="Train one linear layer on these: a name of `fedstill list features`, or "
            "package.module:function.",
        ),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="Where clients run: local or flower.", show_default="local")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes.", show_default="one per core")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1 or mps.", show_default="cpu")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Random seed: same seed, same bits.", show_default="0")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder.", show_default="runs/METHOD-DATA-001")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with any of these options and settings.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. method.local_epochs=5."),
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also send metrics to tensorboard or mlflow."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Run one federated experiment.

    METHOD is one of `fedstill list methods`, or your own as package.module:Class.
    With no options: the built-in digits, 10 clients with very different classes (Dirichlet 0.1).
    After Ctrl-C, --resume continues the run.
    """
    chosen: dict[str, Any] = {
        "method": method,
        "data": data,
        "data_dir": None if data_dir is None else str(data_dir),
        "clients": clients,
        "partition": partition,
        "participation": participation,
        "rounds": rounds,
        "epsilon": epsilon,
        "delta": delta,
        "model": model,
        "features": features,
        "engine": engine,
        "workers": workers,
        "device": device,
        "seed": seed,
    }
    settings = dict(parse_override(text) for text in set_ or ())
    request = merged(*requested(chosen, settings, config))
    _refuse_early(request, out, resume)
    with started_ahead(0 if resume else workers_expected(request)):
        result = fedstill.run(
            **chosen, out=out, resume=resume, config=config, set=settings, track=track or ()
        )
    _print_outcome(result.folder, result.summary)
    if result.metrics:  # none where the budget allowed no round
        _print_domains(result.metrics[-1])
    if json:
        options.print_json(result.summary)


def _refuse_early(request: Table, out: Path | None, resume: bool) -> None:
    """Refuse what can be refused before PyTorch is imported and a worker is started."""
    if resume:  # the rest of the request is the run's own
        resumable(out)
        return
    refuse_early(request)
    if out is not None:
        refuse_unless_free(out)


def _print_domains(last: "RoundMetrics") -> None:
    """Accuracy on the test records of every domain, where they have any."""
    shares = {k.partition("/")[2]: v for k, v in last.details.items() if k.startswith("accuracy/")}
    if shares:
        text = ", ".join(f"{name} {in_percent(share)}" for name, share in shares.items())
        Console(soft_wrap=True, highlight=False).print(f"by domain: {text}", markup=False)


def _print_outcome(folder: Path, summary: "Summary") -> None:
    console = Console(soft_wrap=True, highlight=False)
    networks = summary.details.get("networks", 0)
    spread = ""
    if networks:
        number = counted(round(networks), "network")
        spread = f" ± {in_percent(summary.details['accuracy_std'])} ({number})"
    console.print(
        f"accuracy [bold]{in_percent(summary.accuracy)}[/bold]{spread} "
        f"after {counted(summary.rounds_done, 'round')}, "
        f"{in_bytes(summary.up_bytes)} up, {in_bytes(summary.down_bytes)} down, "
        f"{in_time(summary.seconds)}"
    )
    if summary.privacy is not None:
        spent = (
            f"epsilon {summary.epsilon or 0:.2f}, delta {summary.delta:g} ({summary.accountant})"
        )
        console.print(f"{spent}: {summary.privacy}", markup=False)
    if summary.status == "budget spent":
        console.print("the privacy budget is spent: this is the model so far", markup=False)
    console.print(f"run folder: {folder}", markup=False)
    console.print(f"report: {folder / 'report.html'}", markup=False)
