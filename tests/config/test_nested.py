import re
from pathlib import Path
from typing import Any

import pytest

from fedstill.config.nested import flat, merged, nested, parse_override, read_toml
from fedstill.config.resolve import resolve
from fedstill.errors import RequestError


def test_overrides_are_toml_or_strings() -> None:
    assert parse_override("a.b=3") == ("a.b", 3)
    assert parse_override("a.b=0.5") == ("a.b", 0.5)
    assert parse_override("a=true") == ("a", True)
    assert parse_override("a=[0.5, 0.5]") == ("a", [0.5, 0.5])
    assert parse_override("partition=dirichlet:0.5") == ("partition", "dirichlet:0.5")
    assert parse_override("a=b=c") == ("a", "b=c")
    for bad in ("novalue", "=3"):
        with pytest.raises(RequestError, match="write it as KEY=VALUE"):
            parse_override(bad)


def test_tables() -> None:
    assert nested({"a.b": 1, "a.c": 2, "d": 3}) == {"a": {"b": 1, "c": 2}, "d": 3}
    assert flat({"a": {"b": 1, "c": 2}, "d": 3}) == {"a.b": 1, "a.c": 2, "d": 3}
    assert merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 5}}) == {"a": {"b": 5, "c": 2}}
    with pytest.raises(RequestError, match="'a' is already set to a value"):
        nested({"a": 1, "a.b": 2})
    with pytest.raises(RequestError, match=r"a: 'a\.b' is already set"):
        nested({"a.b": 2, "a": 1})


def test_config_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(RequestError, match="not valid TOML"):
        read_toml(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ({"method": {"lr": 0.1}}, "method.lr: no such setting; did you mean 'learning_rate'?"),
        ({"method": {"bs": 8}}, "method.bs: no such setting; did you mean 'batch_size'?"),
        ({"method": {"epochs": 2}}, "method.epochs: no such setting; did you mean 'local_epochs'?"),
        ({"workers": 1}, "workers: no such setting; did you mean 'engine.workers'?"),
        ({"epsilon": 1.0}, "epsilon: no such setting; did you mean 'privacy.epsilon'?"),
        (
            {"method": {"optimiser": "rmsprop"}},
            "method.optimiser: expected one of 'sgd', 'adam' (it is 'rmsprop')",
        ),
        ({"engine": "cloud"}, "engine.name: expected one of 'local', 'flower' (it is 'cloud')"),
        (
            {"precision": "half"},
            "precision: expected one of 'float32', 'bfloat16' (it is 'half')",
        ),
    ],
)
def test_the_usual_abbreviations_and_the_valid_values_are_named(
    setting: dict[str, Any], complaint: str
) -> None:
    method = {"name": "fedavg", **setting.pop("method", {})}
    with pytest.raises(RequestError, match=re.escape(complaint)):
        resolve({"method": method, **setting})
