"""Configurations: TOML files, tables, and ``--set``."""

import copy
from pathlib import Path
from random import Random
from typing import Any

import tomli_w

from fedstill.config import resolve
from fedstill.config.nested import flat, nested, parse_override, read_toml
from tests.fuzz.mutate import mutated_bytes, mutated_text, mutated_value, strange
from tests.fuzz.target import Check, Make, Target

_REQUESTS: tuple[dict[str, Any], ...] = (
    {"method": "fedavg"},
    {"method": "feddm", "privacy": {"epsilon": 3.0}, "wire": {"up": "uint8+zstd"}},
    {"method": "fedgloss", "defence": {"mode": "drop"}, "partition": "classes:2"},
    {"method": "scaffold", "data": {"name": "digits", "image_size": 8}, "model": "mlp"},
    {"method": "dynafed", "corrupt": {}, "engine": {"workers": 2, "round_timeout": 5.0}},
)
_VALUES = (
    "0", "1", "2", "0.5", '"iid"', "-1", "1e400", "nan", "-inf", '""', '"x"', "true", "[]", "{}",
    "[[1], [2]]", "{a = 1}",
    "1979-05-27T07:32:00Z", "07:32:00", "0xffffffffffffffffffff", "9" * 5000, "'''a\nb'''",
    '"\\u0000"', '"\\u202e"', "[" * 30 + "]" * 30, '"../.."', '"hub:a/b"', '"~nobody/x"',
)  # fmt: skip


def _resolved(request: dict[str, Any]) -> None:
    """Resolved: a configuration that is written down and resolves to itself."""
    table = resolve(request).table
    assert resolve(table).table == table
    tomli_w.dumps(table)


def files(folder: Path) -> tuple[Make, Check]:
    """The text of a TOML file."""
    texts = [tomli_w.dumps(resolve(request).table) for request in _REQUESTS]
    path = folder / "config.toml"

    def make(rng: Random) -> bytes:
        text = rng.choice(texts)
        kind = rng.random()
        if kind < 0.2:
            return mutated_bytes(text.encode(), rng, [rng.choice(texts).encode()])
        if kind < 0.3:
            return mutated_text(text, rng).encode("utf-8", "replace")
        if kind < 0.33:
            return b".".join([b"a"] * rng.choice((30, 500, 3000))) + b" = 1"
        lines = text.splitlines()
        for _ in range(rng.choice((1, 1, 2))):
            place = rng.randrange(len(lines))
            key, equals, _old = lines[place].partition(" = ")
            if equals and rng.random() < 0.8:
                lines[place] = f"{key} = {rng.choice(_VALUES)}"
            else:
                lines.insert(rng.randrange(len(lines)), lines.pop(place))
        return "\n".join(lines).encode()

    def check(case: bytes) -> None:
        path.write_bytes(case)
        _resolved(read_toml(path))

    return make, check


def tables(_: Path) -> tuple[Make, Check]:
    """Tables of wrong types and values."""
    wholes = [resolve(request).table for request in _REQUESTS]

    def make(rng: Random) -> dict[str, Any]:
        table: Any = copy.deepcopy(rng.choice((*wholes, *_REQUESTS)))
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            changed = mutated_value(table, rng)
            table = changed if isinstance(changed, dict) else table
        return dict(table)

    return make, _resolved


def overrides(_: Path) -> tuple[Make, Check]:
    """``--set KEY=VALUE``."""
    keys = sorted({key for request in _REQUESTS for key in flat(resolve(request).table)})

    def make(rng: Random) -> str:
        key = rng.choice(keys)
        if rng.random() < 0.1:
            key = mutated_text(key, rng)
        value = rng.choice(_VALUES) if rng.random() < 0.7 else str(strange(rng))
        return f"{key}={value}" if rng.random() < 0.97 else key

    def check(case: str) -> None:
        key, value = parse_override(case)
        _resolved({"method": {"name": "fedavg"}, **nested({key: value})})

    return make, check


TARGETS = (
    Target("config files", 0.05, files),
    Target("config tables", 0.04, tables),
    Target("settings", 0.03, overrides),
)
