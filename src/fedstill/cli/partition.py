"""``fedstill partition``: the records of each client."""

from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli import options
from fedstill.config.nested import merged
from fedstill.draw.console import Console


def partition_command(
    data: Annotated[
        str, typer.Option(help="A name of `fedstill list data`, or a path.")
    ] = "digits",
    data_dir: options.DataDir = None,
    clients: options.Clients = None,
    partition: options.Partition = None,
    seed: Annotated[int, typer.Option(help="Same seed, same partition as `fedstill run`.")] = 0,
    out: Annotated[Path, typer.Option(help="PNG file to write.")] = Path("partition.png"),
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Any setting, e.g. data.client_column=writer."
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Show how many records of each class every client holds; for texts, how many tokens.

    Prints a table and draws a PNG image. `fedstill run` with the same options and seed partitions
    the records in the same way.
    """
    from fedstill.build import partitioned
    from fedstill.config import resolve_partitioning
    from fedstill.data import describe, load
    from fedstill.draw.partitions import partition_picture
    from fedstill.draw.terminal import partition_table

    chosen = {
        "data.name": data,
        "data.dir": None if data_dir is None else str(data_dir),
        "clients": clients,
        "partition": partition,
        "seed": seed,
    }
    overrides = options.overrides(set_)
    given = options.given(chosen)
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
        options.print_json(answer)
