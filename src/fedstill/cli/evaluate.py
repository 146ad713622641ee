"""``fedstill evaluate``: scores of a model or a synthetic set."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

import fedstill
from fedstill.cli import options
from fedstill.config.early import model_names
from fedstill.config.nested import parse_override
from fedstill.draw.console import Console
from fedstill.draw.numbers import in_percent
from fedstill.runs.place import refuse_unless_set_or_model

if TYPE_CHECKING:
    from fedstill.evaluate.evaluated import Evaluated

_MANY_CLASSES = 20  # of more, only the worst are shown
_WORST = 10


def evaluate_command(
    source: Annotated[
        Path,
        typer.Argument(metavar="SET|MODEL", help="A set file, a model file, or a run folder."),
    ],
    models: Annotated[
        str | None,
        typer.Option(
            help="Networks to train on a set: names of `fedstill list models`, comma-separated.",
            show_default="the run's",
        ),
    ] = None,
    networks: Annotated[
        int,
        typer.Option("--networks", "--seeds", min=1, help="Newly initialised networks per model."),
    ] = 3,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs over the set, per network.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Steps per network, instead of epochs.",
            show_default="600; of rows of numbers 100 epochs",
        ),
    ] = None,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of SGD.")] = 0.02,
    schedule: Annotated[
        str,
        typer.Option(
            help="Of the learning rate: constant (a tenth in the second half), step or cosine."
        ),
    ] = "cosine",
    augment: Annotated[
        str,
        typer.Option(
            help="Of the images: none, dsa, affine, affine+elastic, photo, or auto: by the data."
        ),
    ] = "auto",
    balanced: Annotated[
        bool,
        typer.Option(
            "--balanced/--not-balanced", help="Every class has the same share in every batch."
        ),
    ] = True,
    momentum: Annotated[float, typer.Option(min=0, help="Momentum of SGD.")] = 0.9,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per step.")] = 32,
    data: Annotated[
        str | None,
        typer.Option(help="Data set whose test split is used.", show_default="the run's"),
    ] = None,
    data_dir: options.DataDir = None,
    device: options.Device = "cpu",
    seed: Annotated[int, typer.Option(min=0, help="Random seed: same seed, same numbers.")] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A network's setting, e.g. resnet18.width=8."
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Test a model or a synthetic set: accuracy, loss, calibration, and accuracy by class.

    The argument is a set file, a model file, or a run folder, of which the model and the set of the
    last round are tested. A set is scored by newly initialised networks that are trained on it
    alone: mean and standard deviation over several of them, for each architecture in --models.
    """
    refuse_unless_set_or_model(source)
    names = model_names(models)
    evaluated = fedstill.evaluate(
        source,
        models=names,
        networks=networks,
        epochs=epochs,
        steps=steps,
        learning_rate=learning_rate,
        momentum=momentum,
        batch_size=batch_size,
        schedule=schedule,
        augment=augment,
        balanced=balanced,
        data=data,
        data_dir=data_dir,
        device=device,
        seed=seed,
        set=dict(parse_override(text) for text in set_ or ()),
    )
    _print(evaluated)
    if json:
        options.print_json(evaluated.summary)


def _print(evaluated: "Evaluated") -> None:
    console = Console(highlight=False)
    if evaluated.note:
        console.print(f"note: {evaluated.note}", markup=False, soft_wrap=True)
    console.print(evaluated.tested, markup=False)
    head, rows = evaluated.rows
    table = Table(box=None)
    for name in head:
        table.add_column(name, justify="left" if name in ("of", "network") else "right")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
    console.print(_class_table(evaluated))


def _class_table(evaluated: "Evaluated") -> Table:
    """Accuracy by class: of all, or of the worst if there are many."""
    columns = [("model", evaluated.model.summary)] if evaluated.model else []
    columns += [(scores.model["name"], scores.summary) for scores in evaluated.set]
    tables = [summary["per_class"] for _, summary in columns]
    order = list(range(len(evaluated.class_names)))
    title = "accuracy by class"
    if len(order) > _MANY_CLASSES:
        order = sorted(order, key=lambda c: min(1.0 if t[c] is None else t[c] for t in tables))
        order, title = order[:_WORST], f"the {_WORST} worst of {len(order)} classes"
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("class")
    for name, _ in columns:
        table.add_column(Text(name), justify="right")
    for number in order:
        cells = [in_percent(column[number]) for column in tables]
        table.add_row(Text(evaluated.class_names[number]), *cells)
    return table
