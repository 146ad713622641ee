"""Nested tables of settings: reading, merging, and strict conversion."""

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from fedstill.errors import RequestError, did_you_mean

T = TypeVar("T")
Table = dict[str, Any]


def read_toml(path: Path) -> Table:
    """A configuration file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise RequestError(f"{path}: not valid TOML: {error}") from error


def parse_override(text: str) -> tuple[str, Any]:
    """``KEY=VALUE`` of ``--set``: the value is TOML, or else a plain string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise RequestError(f"--set {text}: write it as KEY=VALUE, e.g. method.local_epochs=5")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


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
    return {
        k: without_none(v) if isinstance(v, Mapping) else v
        for k, v in table.items()
        if v is not None
    }


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
        value = flat(table).get(inner)
        shown = f" (it is {value!r})" if value is not None else ""
        text = complaint[0].lower() + complaint[1:].replace("`", "")
        raise RequestError(f"{key}: {text}{shown}") from None


def _refuse_unknown_keys(table: Any, kind: Any, path: str) -> None:
    # A section that may be left out is a dataclass or None.
    kind = next((k for k in get_args(kind) if dataclasses.is_dataclass(k)), kind)
    if not isinstance(table, Mapping) or not dataclasses.is_dataclass(kind):
        return
    hints = get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]
    for key, value in table.items():
        dotted = f"{path}.{key}" if path else key
        if key not in names:
            raise RequestError(f"{dotted}: no such setting{did_you_mean(key, names)}")
        _refuse_unknown_keys(value, hints[key], dotted)
