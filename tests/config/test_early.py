"""The index says what the code says, and an early refusal what the late one would say."""

import dataclasses
import typing
from pathlib import Path
from typing import Any

import pytest

from fedstill.config import resolve
from fedstill.config.early import refuse_early
from fedstill.config.index import index
from fedstill.config.nested import nested
from fedstill.data import load
from fedstill.errors import RequestError
from fedstill.methods import METHODS
from fedstill.models import MODELS

from .make_index import from_the_code


def test_the_index_is_what_the_code_is() -> None:
    ours, theirs = index(), from_the_code()  # `make index` writes it anew
    for kind in ("methods", "models", "features"):
        shipped, now = getattr(ours, kind), getattr(theirs, kind)
        assert list(shipped) == list(now)
        assert {n: e.about for n, e in shipped.items()} == {n: e.about for n, e in now.items()}
        assert {n: list(e.settings) for n, e in shipped.items()} == {
            n: list(e.settings) for n, e in now.items()
        }


@pytest.mark.parametrize("name", [*METHODS, *MODELS])
def test_the_index_has_the_types_of_the_code(name: str) -> None:
    cls = METHODS[name] if name in METHODS else MODELS[name].cls
    entry = {**index().methods, **index().models}[name]
    hints = typing.get_type_hints(cls, include_extras=True)
    shipped = {f.name: f.type for f in dataclasses.fields(entry.settings_class())}
    assert shipped == {key: hints[key] for key in shipped}


WRONG: list[dict[str, Any]] = [
    {},
    {"method": 3},
    {"method": "fedavgg"},
    {"method.name": 7},
    {"method": "fedavg", "rounds": 0},
    {"method": "fedavg", "roundss": 1},
    {"method": "fedavg", "wire.max_norm": float("nan")},
    {"method": "fedavg", "model": "convnett"},
    {"method": "fedavg", "model": 3},
    {"method": "fedavg", "model.name": "convnet", "model.widht": 3},
    {"method": "fedavg", "features": "scatter", "model": "convnet"},
    {"method": "fedavg", "partition": "dirichlet"},
    {"method": "fedavg", "privacy.delta": 1e-5},
    {"method": "fedavg", "engine": "cloud"},
    {"method.name": "fedavg", "method.lr": 1},
    {"method.name": "fedavg", "method.local_epochs": 0},
    {"method.name": "fedavg", "method.local_epochs": "many"},
    {"method.name": "fedavg", "method.aggregate": "sum"},
    {"method.name": "distdd", "method.aggregate": "max"},
    {"method.name": "feddm", "method.pixel_learning_rate": -1.0},
]


@pytest.mark.parametrize("request_", WRONG, ids=str)
def test_an_early_refusal_has_the_words_of_the_late_one(request_: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as late:
        resolve(nested(request_))
    with pytest.raises(RequestError) as early:
        refuse_early(nested(request_))
    assert str(early.value) == str(late.value)


WRONG_DATA: list[dict[str, str]] = [
    {"name": ""},
    {"name": "nosuch"},
    {"name": "  "},
    {"name": "nosuch.csv"},
    {"name": "~nobody-here/data"},
    {"name": "a\0b"},
    {"name": "a" * 5000},
    {"name": "own.data:load"},
    {"name": "mnist", "dir": "nosuch"},
    {"name": "mnist", "dir": "held"},
    {"name": "nosuch", "dir": "held"},
    {"name": "", "dir": "held"},
    {"name": "mnist", "dir": "~nobody-here/data"},
]


@pytest.mark.parametrize("data", WRONG_DATA, ids=lambda data: str(data)[:60])
def test_data_that_are_not_there_are_refused_in_the_same_words(
    data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "held" / "cifar10").mkdir(parents=True)
    (tmp_path / "held" / "cifar10" / "train.parquet").touch()
    monkeypatch.chdir(tmp_path)
    request = {"method": "fedavg", "data": data}
    with pytest.raises(RequestError) as late:
        load(resolve(request).data)
    with pytest.raises(RequestError) as early:
        refuse_early(request)
    assert str(early.value) == str(late.value)


RIGHT_DATA: list[dict[str, str]] = [
    {"name": "digits"},
    {"name": "digits", "dir": "nosuch"},
    {"name": "mnist"},
    {"name": "hub:OWNER/NAME"},
    {"name": "hub:OWNER/NAME", "dir": "nosuch"},
    {"name": "digit-five", "dir": "held"},
    {"name": "cifar10", "dir": "held"},
    {"name": "held/cifar10"},
    {"name": "held/cifar10", "dir": "nosuch"},
]


@pytest.mark.parametrize("data", RIGHT_DATA, ids=str)
def test_data_that_may_be_there_are_left_to_loading(
    data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "held" / "cifar10").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    refuse_early({"method": "fedavg", "data": data})


def test_data_are_left_to_a_user_supplied_method_which_may_prefer_others() -> None:
    refuse_early({"method": "nowhere:Method", "data": {"name": "nosuch"}})


@pytest.mark.parametrize("name", METHODS)
def test_a_right_request_is_not_refused(name: str) -> None:
    refuse_early({"method": name})
    resolved = resolve({"method": name, "model": "mlp"}).table
    refuse_early(resolved)


def test_user_supplied_names_are_left_to_the_import() -> None:
    refuse_early({"method": {"name": "nowhere:Method", "own": 1}, "model": "nowhere:make"})
