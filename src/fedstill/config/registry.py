"""Finding and building methods and models: by a built-in name, or by ``package.module:Name``."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from typing import Any

from torch import nn

from fedstill.config.nested import Table, convert
from fedstill.errors import RequestError, did_you_mean
from fedstill.imports import import_object
from fedstill.methods import METHODS
from fedstill.models import MODELS, Model, ModelEntry
from fedstill.rng import Rng, borrowed
from fedstill.types import AnyMethod, Method


def find_method(name: str) -> type[AnyMethod]:
    """The method called ``name``, or a user-supplied one as ``package.module:Class``."""
    if name in METHODS:
        return METHODS[name]
    if ":" not in name:
        raise _unknown("method", name, METHODS)
    return check_method(import_object("method", name), name)


def check_method(cls: Any, name: str) -> type[AnyMethod]:
    """This class, if it is a method; otherwise refused with the first thing that is missing."""
    if not inspect.isclass(cls) or not issubclass(cls, Method):
        raise RequestError(
            f"method: '{name}' is not a method: derive it from fedstill.types.Method"
        )
    if missing := sorted(cls.__abstractmethods__):
        raise RequestError(f"method: '{name}' is incomplete: {missing[0]}() is missing")
    if not is_dataclass(cls):
        raise RequestError(f"method: '{name}' is not a method: it must be a frozen dataclass")
    return cls


def build_method(section: Mapping[str, Any]) -> AnyMethod:
    """The method of a ``[method]`` section, with its settings."""
    return convert(settings_of(section), find_method(section["name"]), "method")


def find_model(name: str) -> ModelEntry | None:
    """The table's entry; ``None`` for a user-supplied ``package.module:name``."""
    if name in MODELS:
        return MODELS[name]
    if ":" in name:
        return None
    raise _unknown("model", name, MODELS)


def build_model(
    section: Mapping[str, Any], shape: tuple[int, ...], classes: int, seed: int = 0
) -> Model:
    """The network of a ``[model]`` section for inputs of this shape."""
    entry, settings = find_model(section["name"]), settings_of(section)
    if entry is None:
        rng = Rng(seed).at("own model")
        return _user_model(section["name"], settings, shape, classes, rng)
    table = {**settings, "shape": list(shape), "classes": classes}
    model: Model = convert(table, entry.cls, "model")
    return model


def _user_model(
    name: str, settings: Table, shape: tuple[int, ...], classes: int, rng: Rng
) -> Model:
    """A user-supplied network: ``package.module:make`` is called as ``make(shape, classes, ...)``.

    It may return a ``Model`` or an ``nn.Module``. What it draws from PyTorch's global generator
    comes from ``rng``, so that every process builds the same.
    """
    make = import_object("model", name)
    try:
        with borrowed(rng.torch()):
            built = make(shape, classes, **settings)
    except Exception as error:  # whatever the user's code raises
        reason = f"{type(error).__name__}: {error}"
        raise RequestError(f"model: {name}(shape, classes, ...): {reason}") from error
    if isinstance(built, nn.Module):
        built = Model.from_module(built)
    if not isinstance(built, Model):
        raise RequestError(f"model: {name} returned {type(built).__name__}, not a network")
    return built


def settings_of(section: Mapping[str, Any]) -> Table:
    """A ``[method]`` or ``[model]`` section without its name."""
    return {key: value for key, value in section.items() if key != "name"}


def _unknown(kind: str, name: str, valid: Iterable[str]) -> RequestError:
    return RequestError(f"{kind}: no {kind} '{name}'{did_you_mean(name, valid)}")
