"""The defaults that recipes rely on: settings that a cell leaves open, and what they then are.

A table in the documentation was computed with them. ``python -m tests.reproduce.relied_on`` writes
``relied_on.json`` again; a value may be added there, with a new setting, but never changed: a
recipe that needs the old default says so itself.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedstill.config import resolve
from fedstill.config.nested import flat
from fedstill.config.request import spelled_out
from fedstill.reproduce.recipe import load_recipe, recipe_names

FILE = Path(__file__).parent / "relied_on.json"
_SECTIONS = ("method.", "wire.", "defence.", "corrupt.")


def left_open(request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The method of a cell (marked where it is private), and the defaults that it relies on."""
    experiment = resolve(request)
    given = flat(spelled_out(request))
    name = experiment.method["name"] + (" with privacy" if experiment.privacy else "")
    resolved = {k: v for k, v in flat(experiment.table).items() if k.startswith(_SECTIONS)}
    return name, {k: v for k, v in resolved.items() if k not in given}


def all_left_open() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Of every cell of every recipe and scale: where it is, its method and its open settings."""
    for recipe_name in recipe_names():
        recipe = load_recipe(recipe_name)
        for scale in recipe.scales:
            for cell in recipe.cells(scale):
                method, defaults = left_open(cell.request)
                yield f"{recipe_name}, {scale}: {cell.row}, {cell.column}", method, defaults


if __name__ == "__main__":
    relied: dict[str, dict[str, Any]] = {}
    for _, method, defaults in all_left_open():
        relied.setdefault(method, {}).update(defaults)
    FILE.write_text(json.dumps(relied, indent=1, sort_keys=True) + "\n")
