"""``fedstill list``: what is available, one line each."""

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fedstill.data import SOURCES
from fedstill.draw.console import Console
from fedstill.errors import RequestError, did_you_mean
from fedstill.features import FEATURES
from fedstill.methods import METHODS, describe_method
from fedstill.models import MODELS
from fedstill.reproduce.recipe import load_recipe, recipe_names
from fedstill.types import AnyMethod


def _described(cls: type[AnyMethod]) -> str:
    private = " [private form]" if cls().private_form(1.0) is not None else ""
    return describe_method(cls) + private


def _kinds() -> dict[str, dict[str, str]]:
    return {
        "methods": {name: _described(cls) for name, cls in METHODS.items()},
        "data": {name: source.description for name, source in SOURCES.items()},
        "models": {name: entry.description for name, entry in MODELS.items()},
        "features": {name: entry.description for name, entry in FEATURES.items()},
        "recipes": {name: load_recipe(name).contents.title for name in recipe_names()},
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
    kinds = _kinds()
    if kind is not None and kind not in kinds:
        raise RequestError(f"list: no kind '{kind}'{did_you_mean(kind, kinds)}")
    console = Console(soft_wrap=False)
    for name, entries in kinds.items():
        if kind in (None, name):
            table = Table(title=name, title_justify="left", title_style="bold", box=None)
            table.add_column(style="cyan", no_wrap=True)
            table.add_column()
            for entry, description in entries.items():
                table.add_row(entry, Text(description))
            console.print(table)
