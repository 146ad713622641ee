"""Nested tables of settings: reading, merging, and strict conversion."""

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from fedstill.errors import UNREADABLE, RequestError, did_you_mean

T = TypeVar("T")
Table = dict[str, Any]

_MOST_BYTES = 2**18  # of a configuration file
_MOST_DOTS = 100  # of a line
_MOST_SHOWN = 200  # characters of a wrong value
_MOST_DEPTH = 20  # of tables and lists in each other


def read_toml(path: Path) -> Table:
    """A configuration file."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path}: cannot be read: {error}") from error
    if len(data) > _MOST_BYTES:
        raise RequestError(f"{path}: more than {_MOST_BYTES:,} bytes, which no configuration needs")
    try:
        table = _parsed(text)
    except UNREADABLE as error:
        raise RequestError(f"{path}: not valid TOML: {_complaint(error)}") from error
    return refuse_deep(table, str(path))


def parse_override(text: str) -> tuple[str, Any]:
    """``KEY=VALUE`` of ``--set``: the value is TOML, or else a plain string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise RequestError(f"--set {text}: write it as KEY=VALUE, e.g. method.local_epochs=5")
    try:
        return key.strip(), refuse_deep(_parsed(f"value = {value}"), "--set")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()
    except UNREADABLE as error:
        raise RequestError(f"--set {key.strip()}: {_complaint(error)}") from error


def _parsed(text: str) -> Table:
    """TOML, unless it would take hours: the parser is quadratic in the parts of a key."""
    if any(line.count(".") > _MOST_DOTS for line in text.split("\n")):
        raise ValueError(f"a line with more than {_MOST_DOTS} dots")
    return tomllib.loads(text.replace("\r\n", "\n"))


def refuse_deep(table: Table, place: str) -> Table:
    """The same table, if tables and lists are not nested deeper than any setting is."""
    level: list[Any] = [table]
    for _ in range(_MOST_DEPTH):
        inner = (v.values() if isinstance(v, Mapping) else v for v in level)
        level = [v for values in inner for v in values if isinstance(v, Mapping | list | tuple)]
        if not level:
            return table
    raise RequestError(f"{place}: nested more than {_MOST_DEPTH} deep, which no setting is")


def _complaint(error: Exception) -> str:
    """What a parser says, without its advice to programmers."""
    if isinstance(error, RecursionError):
        return "nested too deep"
    return str(error).partition("; use sys.")[0]


def nested(dotted: Mapping[str, Any]) -> Table:
    """The nested table of dotted keys: ``{"a.b": 1}`` is ``{"a": {"b": 1}}``."""
    result: Table = {}
    for key, value in dotted.items():
        *parents, last = key.split(".")
        table = result
        for parent in parents:
            table = table.setdefault(parent, {})
            if not isinstance(table, dict):
                raise RequestError(f"{key}: '{parent}' is already set to a value")
        if isinstance(table.get(last), dict):
            raise RequestError(f"{key}: '{key}.{next(iter(table[last]))}' is already set")
        table[last] = value
    return result


def flat(table: Mapping[str, Any], prefix: str = "") -> Table:
    """A nested table by dotted key: the reverse of ``nested``."""
    result: Table = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        result |= flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return result


def merged(*tables: Mapping[str, Any]) -> Table:
    """Nested tables merged key by key; later ones win."""
    result: Table = {}
    for table in tables:
        for key, value in table.items():
            old = result.get(key)
            if isinstance(old, Mapping) and isinstance(value, Mapping):
                result[key] = merged(old, value)
            else:
                result[key] = value
    return result


def as_table(value: Any) -> Any:
    """A dataclass, whole, as plain values.

    (msgspec alone would leave out defaults: the objects it makes keep them in their class.)
    """
    if dataclasses.is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: as_table(item) for key, item in value.items()}
    return msgspec.to_builtins(value)


def without_none(table: Mapping[str, Any]) -> Table:
    """The table without its open settings: TOML has no null."""
    return {k: _without_none(v) for k, v in table.items() if v is not None}


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return without_none(value)
    if not isinstance(value, list):
        return value
    if None in value:
        raise RequestError("configuration: a list holds nothing (null) in place of a value")
    return [_without_none(item) for item in value]


def convert(table: Any, kind: type[T], path: str) -> T:
    """The table as a dataclass, strictly; msgspec's errors with the dotted path and the value."""
    _refuse_unknown_keys(table, kind, path)
    for key, value in flat(table).items() if isinstance(table, Mapping) else ():
        if isinstance(value, float) and not math.isfinite(value):
            dotted = f"{path}.{key}" if path else key
            raise RequestError(f"{dotted}: expected a finite number (it is {value})")
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        complaint, _, place = str(error).partition(" - at `$")
        inner = place.rstrip("`").lstrip(".")
        key = ".".join(filter(None, (path, inner))) or "configuration"
        value = flat(table).get(inner) if isinstance(table, Mapping) else table
        shown = f" (it is {_shown(value)})" if value is not None else ""
        text = complaint[0].lower() + complaint[1:].replace("`", "")
        named = text.startswith(("invalid enum value", "expected str"))
        if named and (choices := _choices(_hint(kind, inner))):
            text = f"expected one of {', '.join(map(repr, choices))}"
        raise RequestError(f"{key}: {text}{shown}") from None


def _hint(kind: Any, dotted: str) -> Any:
    """The type of a setting inside a dataclass."""
    for name in filter(None, dotted.split(".")):
        kind = _dataclass_in(kind)
        if not dataclasses.is_dataclass(kind):
            return None
        kind = get_type_hints(kind, include_extras=True).get(name.partition("[")[0])
    return kind


def _choices(hint: Any) -> list[Any]:
    """The values that a type of literals allows, or the names that one of strings goes by."""
    if isinstance(hint, msgspec.Meta):
        return list(hint.examples or ())
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [choice for part in get_args(hint) for choice in _choices(part)]


def _dataclass_in(kind: Any) -> Any:
    """A section that may be left out is a dataclass or None."""
    return next((k for k in get_args(kind) if dataclasses.is_dataclass(k)), kind)


def _fields_of(kind: Any) -> list[str]:
    """The settings of a section; none if it is not one."""
    kind = _dataclass_in(kind)
    return [f.name for f in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python does not write numbers of 5,000 digits
        return "a number too long to show"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _refuse_unknown_keys(table: Any, kind: Any, path: str) -> None:
    kind = _dataclass_in(kind)
    if not isinstance(table, Mapping) or not dataclasses.is_dataclass(kind):
        return
    hints = get_type_hints(kind)
    names = _fields_of(kind)
    for key, value in table.items():
        dotted = f"{path}.{key}" if path else key
        if key not in names:
            inside = [f"{name}.{key}" for name in names if key in _fields_of(hints[name])]
            raise RequestError(f"{dotted}: no such setting{did_you_mean(key, inside or names)}")
        _refuse_unknown_keys(value, hints[key], dotted)
