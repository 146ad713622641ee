"""The grid: which methods are measured, with which settings and at which sizes."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from fedstill.cells import refuse_settings_of_cells
from fedstill.config import spelled_out
from fedstill.config.nested import Table, convert, flat, merged, nested, read_toml
from fedstill.config.registry import find_method
from fedstill.errors import RequestError, did_you_mean
from fedstill.types import AnyMethod

Seconds = Annotated[float, Meta(gt=0)]


@dataclass(frozen=True)
class Line:
    """A method with settings; ``vary`` names the setting whose values ``over`` are the cells."""

    method: str
    group: str = ""
    settings: Table = field(default_factory=dict)
    vary: str = ""
    over: list[int | float | str] = field(default_factory=list)
    seconds: Seconds | list[Seconds] = 60.0


@dataclass(frozen=True)
class Grid:
    """The lines by name."""

    lines: dict[str, Line]


@dataclass(frozen=True)
class _File:
    lines: dict[str, Table]


@dataclass(frozen=True, eq=False)
class Cell:
    """One experiment: a line at one size. A cell equals itself only."""

    line: str
    size: str  # empty where the line has one cell
    group: str
    request: Table
    seconds: float  # a first guess of its cost
    sends_records: bool

    @property
    def name(self) -> str:
        return f"{self.line}, {self.size}" if self.size else self.line

    @property
    def folder(self) -> str:
        """A name for its runs' folder."""
        kept = "".join(c if c.isalnum() or c == "." else "-" for c in self.name.lower())
        return "-".join(filter(None, kept.split("-")))


def read_grid(given: str | Path | Mapping[str, Any] | None) -> Grid:
    """The grid of a TOML file or of a table, checked; without one, the grid of the package."""
    if given is None:
        file = resources.files("fedstill.frontier") / "grid.toml"
        table: Table = tomllib.loads(file.read_text(encoding="utf-8"))
    else:
        table = read_toml(Path(given)) if isinstance(given, str | Path) else dict(given)
    named = convert(table, _File, "grid").lines
    if not named:
        raise RequestError("grid.lines: there is none; name a method in [lines.NAME]")
    grid = Grid({name: convert(line, Line, f"grid.lines.{name}") for name, line in named.items()})
    for name, line in grid.lines.items():
        _check(f"grid.lines.{name}", line)
    folders = [cell.folder for cell in cells_of(grid, {})]
    if not all(
        any(map(str.isalnum, folder)) for folder in folders
    ):  # "" or "..": not one of its own
        raise RequestError("grid.lines: a line's name needs a letter or a digit, for its folder")
    if twice := next((f for f in folders if folders.count(f) > 1), None):
        raise RequestError(f"grid.lines: two cells would share the folder '{twice}'; rename a line")
    return grid


def _check(place: str, line: Line) -> None:
    if bool(line.vary) != bool(line.over):
        raise RequestError(f"{place}: 'vary' names a setting and 'over' its values: give both")
    if isinstance(line.seconds, list) and len(line.seconds) != max(1, len(line.over)):
        raise RequestError(f"{place}.seconds: give one number, or as many as 'over' has")
    varied = nested({line.vary: line.over[0]}) if line.vary else {}
    refuse_settings_of_cells(merged(line.settings, varied), f"{place}: ")
    if _method_of(line, place).pooled:
        raise RequestError(f"{place}.method: {line.method} sends nothing; leave it out")


def _method_of(line: Line, place: str) -> type[AnyMethod]:
    """The line's method; the complaint that there is none says in which line."""
    try:
        return find_method(line.method)
    except RequestError as error:  # "method: no method ..."
        raise RequestError(f"{place}.{error}") from error


def narrowed(grid: Grid, methods: Sequence[str]) -> Grid:
    """The lines of these methods; none named: all."""
    known = sorted({line.method for line in grid.lines.values()})
    for name in methods:
        if name not in known:
            raise RequestError(f"--method {name}: not in the grid{did_you_mean(name, known)}")
    if not methods:
        return grid
    return Grid({name: line for name, line in grid.lines.items() if line.method in methods})


def refuse_settings_of_lines(given: Table, grid: Grid) -> None:
    """Refuse settings for every cell that a line has for its own: it would be measured with others
    than it is named for, and its cells, or it and another line, would be the same experiment."""
    cells = cells_of(grid, {})
    for key, value in flat(given).items():
        meant = set(flat(spelled_out(nested({key: value}))))  # as `model` is `model.name`
        for cell in cells:
            if meant & set(flat(spelled_out(cell.request))):
                does = "varies" if grid.lines[cell.line].vary in meant else "sets"
                raise RequestError(
                    f"{key} = {value}: line '{cell.line}' of the grid {does} it itself; leave it "
                    "out, or change the grid with --grid"
                )


def cells_of(grid: Grid, common: Table) -> list[Cell]:
    """The cells, line by line; ``common`` settings lie below those of the grid."""
    below = spelled_out(common)
    return [cell for name, line in grid.lines.items() for cell in _cells(name, line, below)]


def _cells(name: str, line: Line, common: Table) -> list[Cell]:
    method = find_method(line.method)
    settings = spelled_out(line.settings)
    if "model" in method.DEFAULTS:  # a network of its own: the common one is for the others
        common = {key: value for key, value in common.items() if key != "model"}
    base = merged(common, settings, {"method": {"name": line.method}})
    sizes = line.over or [""]
    costs = line.seconds if isinstance(line.seconds, list) else [line.seconds] * len(sizes)
    return [
        Cell(
            line=name,
            size=_size(line.vary, value) if line.vary else "",
            group=line.group or line.method,
            request=merged(base, nested({line.vary: value})) if line.vary else base,
            seconds=cost,
            sends_records=method.sends_records,
        )
        for value, cost in zip(sizes, costs, strict=True)
    ]


def _size(vary: str, value: float | str) -> str:
    """``method.images_per_class`` and 10 -> '10 images per class'; others: 'networks 3'."""
    word = vary.rpartition(".")[2]
    if word == "images_per_class":
        return f"{value} {'image' if value == 1 else 'images'} per class"
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{word.replace('_', ' ')} {shown}"
