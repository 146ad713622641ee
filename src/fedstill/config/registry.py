"""Finding and building methods and models: by a built-in name, or by ``package.module:Name``."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import nn

from fedstill.config.nested import Table, convert
from fedstill.errors import RequestError, did_you_mean
from fedstill.imports import import_object
from fedstill.methods import METHODS
from fedstill.models import MODELS, Model, ModelEntry
from fedstill.models.model import StartWeights
from fedstill.models.module import ModuleNorm
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


def build_method(section: Mapping[str, Any], key: str = "method") -> AnyMethod:
    """The method of a ``[method]`` or ``[start]`` section, with its settings."""
    return convert(settings_of(section), find_method(section["name"]), key)


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
    ours = {k: v for k, v in settings.items() if k in _MODULE_SETTINGS and not _names(make, k)}
    own = {k: v for k, v in settings.items() if k not in ours}
    try:
        with borrowed(rng.torch()):
            built = make(shape, classes, **own)
    except Exception as error:  # whatever the user's code raises
        reason = f"{type(error).__name__}: {error}"
        raise RequestError(f"model: {name}(shape, classes, ...): {reason}") from error
    return supplied_model(built, {"name": name, **ours})


def supplied_model(built: Any, section: Mapping[str, Any]) -> Model:
    """A user-supplied ``Model``, or ``nn.Module`` treated as ``[model]`` says."""
    table = settings_of(section)
    if isinstance(built, nn.Module):
        settings = convert(table, ModuleSettings, "model")
        return Model.from_module(built, settings.layers, settings.weights, settings.norm)
    if not isinstance(built, Model):
        raise RequestError(
            f"model: {section['name']} returned {type(built).__name__}, not a network"
        )
    if table and section["name"] not in MODELS:
        key = next(iter(table))
        raise RequestError(f"model.{key}: a Model object has its settings; leave it out")
    return built


@dataclass(frozen=True)
class ModuleSettings:
    """What ``[model]`` may set for a user-supplied ``nn.Module``: see ``models/module.py``.

    A function that makes the network and has a parameter of that name gets it instead.
    """

    weights: StartWeights = "keep"
    norm: ModuleNorm | None = None
    layers: list[str] | None = None


_MODULE_SETTINGS = [field.name for field in fields(ModuleSettings)]


def _names(make: Any, parameter: str) -> bool:
    """Whether this function has a parameter of that name (``**settings`` does not name any)."""
    try:
        return parameter in inspect.signature(make).parameters
    except (TypeError, ValueError):  # not a function, or one without a signature
        return False


def settings_of(section: Mapping[str, Any]) -> Table:
    """A ``[method]`` or ``[model]`` section without its name."""
    return {key: value for key, value in section.items() if key != "name"}


def _unknown(kind: str, name: str, valid: Iterable[str]) -> RequestError:
    return RequestError(f"{kind}: no {kind} '{name}'{did_you_mean(name, valid)}")
