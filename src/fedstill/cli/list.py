"""``fedstill list``: what is available, one line each."""

from collections.abc import Callable, Mapping
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fedstill.config.index import Entry, index
from fedstill.data.catalogue import SOURCES
from fedstill.draw.console import Console
from fedstill.errors import RequestError, did_you_mean
from fedstill.reproduce.recipe import load_recipe, recipe_names


def _about(entries: Mapping[str, Entry]) -> dict[str, str]:
    return {name: entry.about for name, entry in entries.items()}


_KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "methods": lambda: _about(index().methods),
    "data": lambda: {name: source.description for name, source in SOURCES.items()},
    "models": lambda: _about(index().models),
    "features": lambda: _about(index().features),
    "recipes": lambda: {name: load_recipe(name).contents.title for name in recipe_names()},
}


def list_command(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="methods, data, models, features or recipes.", show_default="all of them"
        ),
    ] = None,
) -> None:
    """List the methods, data sets, models, feature maps and recipes, each with one line.

    KIND is methods, data, models, features or recipes; without it, all of them.
    """
    if kind is not None and kind not in _KINDS:
        raise RequestError(f"list: no kind '{kind}'{did_you_mean(kind, _KINDS)}")
    console = Console(soft_wrap=False)
    for name, entries in _KINDS.items():
        if kind in (None, name):
            table = Table(title=name, title_justify="left", title_style="bold", box=None)
            table.add_column(style="cyan", no_wrap=True)
            table.add_column()
            for entry, description in entries().items():
                table.add_row(entry, Text(description))
            console.print(table)
