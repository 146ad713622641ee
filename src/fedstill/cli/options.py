"""Options that several commands have, and what commands do with them in the same way."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fedstill.config.nested import Table, nested, parse_override
from fedstill.errors import printable

DataDir = Annotated[
    Path | None, typer.Option(help="Folder with <name>/train.parquet and test.parquet.")
]
Clients = Annotated[int | None, typer.Option(help="Number of clients.", show_default="10")]
Partition = Annotated[
    str | None,
    typer.Option(
        help="iid, dirichlet:ALPHA[:balanced], classes:N, quantity:ALPHA, natural.",
        show_default="dirichlet:0.1, or natural where the data have clients",
    ),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or mps.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print the outcome as JSON, as the last line of output.")
]


def overrides(texts: Iterable[str] | None) -> Table:
    """The settings of ``--set KEY=VALUE`` as a nested table."""
    return nested(dict(parse_override(text) for text in texts or ()))


def given(options: Table) -> Table:
    """The options that were given, by dotted key, as a nested table."""
    return nested({key: value for key, value in options.items() if value is not None})


def print_json(answer: Any) -> None:
    """The answer as the last line of standard output."""
    sys.stdout.write(printable(msgspec.json.encode(answer).decode()) + "\n")
