"""Recipes: a table or figure of a paper as data (``recipes/*.toml``).

A recipe has rows and columns, each with some settings; a cell is one of both. Its experiment is
seven layers, each over the one before: the recipe's, the row's, the column's, the scale's, and the
scale's for this row, for this column and for this cell. A layer has settings for all cells, and in
``methods.NAME`` settings for the cells of one method.

The scales are ``paper`` (as printed), ``cpu-long`` (real data, two cores, a night: settings chosen
to reach the printed accuracy, not to repeat the printed budget), ``cpu`` (about an hour) and
``smoke`` (built-in data, seconds). A file may build on another: ``extends = "_feddm"``.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, Literal

from fedstill.config.nested import Table, convert, merged
from fedstill.config.request import spelled_out
from fedstill.errors import RequestError, did_you_mean

ScaleName = Literal["smoke", "cpu", "cpu-long", "paper"]
SCALES: tuple[ScaleName, ...] = ("smoke", "cpu", "cpu-long", "paper")
Measure = Literal["accuracy", "best_accuracy", "floats"]
Number = float | list[float]  # a value, or a value and its spread


@dataclass(frozen=True)
class Scale:
    """What a scale changes, and which part of the table it covers (all of it by default).

    ``by_row`` and ``by_column``: settings of single rows and columns, over all others; ``by_cell``:
    of single cells, by row and then by column, over those.
    """

    settings: Table = field(default_factory=dict)
    methods: dict[str, Table] = field(default_factory=dict)
    by_row: dict[str, Table] = field(default_factory=dict)
    by_column: dict[str, Table] = field(default_factory=dict)
    by_cell: dict[str, dict[str, Table]] = field(default_factory=dict)
    rows: list[str] | None = None
    columns: list[str] | None = None
    comparable: bool = True  # whether its numbers are compared with the printed ones
    note: str = ""


@dataclass(frozen=True)
class Scales:
    """What each scale changes. Not every recipe has a ``cpu_long``."""

    smoke: Scale = field(default_factory=Scale)
    cpu: Scale = field(default_factory=Scale)
    cpu_long: Scale | None = None
    paper: Scale = field(default_factory=Scale)

    @property
    def by_name(self) -> dict[ScaleName, Scale]:
        """The scales that the recipe has."""
        return {name: scale for name in SCALES if (scale := getattr(self, _field(name)))}

    def replaced(self, name: ScaleName, scale: Scale) -> "Scales":
        """The same with another ``scale`` of this name."""
        return replace(self, **{_field(name): scale})


@dataclass(frozen=True)
class Contents:
    """A recipe's file, with what it extends."""

    title: str
    source: str
    rows: dict[str, Table]
    columns: dict[str, Table]
    notes: str = ""
    measure: Measure = "accuracy"
    settings: Table = field(default_factory=dict)
    methods: dict[str, Table] = field(default_factory=dict)
    published: dict[str, dict[str, Number]] = field(default_factory=dict)
    only_published: bool = True  # run only cells with a printed number; off for figures
    scales: Scales = field(default_factory=Scales)
    extends: str = ""


@dataclass(frozen=True)
class Cell:
    """One experiment of a recipe, and what the paper says of it."""

    row: str
    column: str
    request: Table
    published: float | None
    spread: float | None

    @property
    def name(self) -> str:
        return f"{self.row}, {self.column}"

    @property
    def folder(self) -> str:
        """A name for its runs' folder."""
        return f"{_slug(self.row)}--{_slug(self.column)}"


@dataclass(frozen=True)
class Recipe:
    """A recipe by its name."""

    name: str
    contents: Contents

    @property
    def scales(self) -> list[ScaleName]:
        """The scales at which it can be run."""
        return list(self.contents.scales.by_name)

    def scale(self, name: ScaleName) -> Scale:
        """What a scale changes; refused where the recipe does not have it."""
        found = self.contents.scales.by_name
        if name not in found:
            raise RequestError(f"--scale {name}: {self.name} has {', '.join(found)} only")
        return found[name]

    def part(self, scale: ScaleName, rows: Sequence[str], columns: Sequence[str]) -> "Recipe":
        """The same with these rows and columns alone at a scale, even if that leaves them out;
        none named: those of the scale."""
        known = self.contents
        for option, wanted, there in (
            ("--row", rows, known.rows),
            ("--column", columns, known.columns),
        ):
            for name in wanted:
                if name not in there:
                    raise RequestError(f"{option} {name}: not there{did_you_mean(name, there)}")
        old = self.scale(scale)
        narrowed = self._with(scale, list(rows) or old.rows, list(columns) or old.columns)
        if not narrowed.cells(scale):
            raise RequestError(f"{self.name}: the paper has no number in those rows and columns")
        self._refuse_overridden(scale, narrowed.cells(scale))
        return narrowed

    def _with(
        self, scale: ScaleName, rows: list[str] | None, columns: list[str] | None
    ) -> "Recipe":
        """The same with other rows and columns at a scale; ``None``: all."""
        known = self.contents
        new = replace(self.scale(scale), rows=rows, columns=columns)
        return Recipe(self.name, replace(known, scales=known.scales.replaced(scale, new)))

    def _refuse_overridden(self, scale: ScaleName, wanted: Sequence[Cell]) -> None:
        """Refuse a cell which the scale leaves out and its settings make another cell's experiment:
        it would stand beside a printed number that belongs to other settings."""
        own = {cell.name for cell in self.cells(scale)}
        unscaled = replace(self.contents, scales=self.contents.scales.replaced(scale, Scale()))
        without = {cell.name: cell.request for cell in Recipe(self.name, unscaled).cells(scale)}
        for cell in wanted:
            for other in self._with(scale, None, None).cells(scale):
                made_equal = (
                    cell.request == other.request and without[cell.name] != without[other.name]
                )
                if made_equal and cell.name not in own:
                    raise RequestError(
                        f"--scale {scale}: its settings make '{cell.name}' the same experiment as "
                        f"'{other.name}'; choose another scale, such as paper"
                    )

    def cells(self, scale_name: ScaleName) -> list[Cell]:
        """The experiments of a scale, row by row."""
        known, scale = self.contents, self.scale(scale_name)
        cells = []
        for row in scale.rows or known.rows:
            for column in scale.columns or known.columns:
                value, spread = _number(known.published.get(row, {}).get(column))
                if value is None and known.only_published:
                    continue
                cells.append(Cell(row, column, self._request(row, column, scale), value, spread))
        return cells

    def _request(self, row: str, column: str, scale: Scale) -> Table:
        known = self.contents
        layers = (_Layer.of(known.rows[row]), _Layer.of(known.columns[column]))
        below = _Layer(known.settings, known.methods)
        above = _Layer(scale.settings, scale.methods)
        cell = scale.by_cell.get(row, {}).get(column, {})
        single = (scale.by_row.get(row, {}), scale.by_column.get(column, {}), cell)
        stack = (below, *layers, above, *map(_Layer.of, single))
        names = [spelled_out(layer.settings).get("method", {}).get("name") for layer in stack]
        method = next((name for name in reversed(names) if name), "")
        return merged(*(layer.request(method) for layer in stack))


@dataclass(frozen=True)
class _Layer:
    """Settings for all methods, and those for single ones."""

    settings: Table
    methods: Mapping[str, Table]

    @classmethod
    def of(cls, table: Table) -> "_Layer":
        """Of a row or a column: its table may hold ``methods`` too."""
        settings = {key: value for key, value in table.items() if key != "methods"}
        return cls(settings, table.get("methods", {}))

    def request(self, method: str) -> Table:
        return merged(spelled_out(self.settings), {"method": self.methods.get(method, {})})


def recipe_names() -> list[str]:
    """All recipes; files that others build on are not among them."""
    files = (resources.files("fedstill") / "recipes").iterdir()
    stems = (f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml"))
    return sorted(stem for stem in stems if not stem.startswith("_"))


def load_recipe(name: str) -> Recipe:
    """The recipe of this name, checked."""
    if name not in recipe_names():
        raise RequestError(f"reproduce: no recipe '{name}'{did_you_mean(name, recipe_names())}")
    return parse_recipe(name, _table(name))


def parse_recipe(name: str, table: Mapping[str, Any]) -> Recipe:
    """A recipe from its table; names that point nowhere are refused."""
    contents = convert(dict(table), Contents, f"recipe {name}")
    rows, columns = set(contents.rows), set(contents.columns)
    named = {"published": set(contents.published) - rows}
    for row, values in contents.published.items():
        named[f"published.{row}"] = set(values) - columns
    for scale, part in contents.scales.by_name.items():
        named[f"scales.{scale}.rows"] = set(part.rows or ()) - rows
        named[f"scales.{scale}.columns"] = set(part.columns or ()) - columns
        named[f"scales.{scale}.by_row"] = set(part.by_row) - rows
        named[f"scales.{scale}.by_column"] = set(part.by_column) - columns
        named[f"scales.{scale}.by_cell"] = set(part.by_cell) - rows
        for row, cells in part.by_cell.items():
            named[f"scales.{scale}.by_cell.{row}"] = set(cells) - columns
    for key, strangers in named.items():
        if strangers:
            raise RequestError(f"recipe {name}.{key}: '{min(strangers)}' is not in the table")
    return Recipe(name, contents)


def _table(name: str) -> Table:
    file = resources.files("fedstill") / "recipes" / f"{name}.toml"
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    base = table.get("extends")
    return merged(_table(base), table) if base else table


def _field(scale: ScaleName) -> str:
    return scale.replace("-", "_")


def _number(value: Number | None) -> tuple[float | None, float | None]:
    if isinstance(value, list):
        return value[0], value[1]
    return value, None


def _slug(text: str) -> str:
    kept = "".join(c if c.isalnum() or c == "." else "-" for c in text.lower())
    return "-".join(filter(None, kept.split("-")))
