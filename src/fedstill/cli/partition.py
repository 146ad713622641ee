"""``fedstill partition``: the records of each client."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from fedstill.build import partitioned
from fedstill.config import resolve_partitioning
from fedstill.config.nested import merged, nested, parse_override
from fedstill.data import describe, load
from fedstill.draw.partitions import partition_picture
from fedstill.draw.terminal import partition_table


def partition_command(
    data: Annotated[
        str, typer.Option(help="A name of `fedstill list data`, or a path.")
    ] = "digits",
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
            show_default="dirichlet:0.1, or natural where the data have clients",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same partition as `fedstill run`.")] = 0,
    out: Annotated[Path, typer.Option(help="PNG file to write.")] = Path("partition.png"),
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Any setting, e.g. data.client_column=writer."
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the counts as the last line of output.")
    ] = False,
) -> None:
    """Show how many records of each class every client holds; for texts, how many tokens.

    Prints a table and draws a PNG image. `fedstill run` with the same options and seed partitions
    the records in the same way.
    """
    options = {
        "data.name": data,
        "data.dir": None if data_dir is None else str(data_dir),
        "clients": clients,
        "partition": partition,
        "seed": seed,
    }
    overrides = nested(dict(parse_override(text) for text in set_ or ()))
    given = nested({key: value for key, value in options.items() if value is not None})
    how = resolve_partitioning(merged(given, overrides))
    dataset = load(how.data)
    partition_ = partitioned(how, dataset)
    counts = partition_.counts(dataset.train.labels, dataset.classes)
    console = Console()
    unit = "tokens" if dataset.tokens else "records"
    console.print(partition_table(counts, dataset.class_names, unit=unit))
    skew = describe(counts)
    partition_picture(counts, dataset.class_names, out, unit=unit)
    console.print(f"picture: {out}", markup=False, highlight=False, soft_wrap=True)
    if json:
        answer = {**skew, "sha256": partition_.digest, "counts": counts.tolist()}
        sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
