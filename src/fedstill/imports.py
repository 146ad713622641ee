"""Code found by its name: a user's, as ``package.module:Name``, and our own, when it is used.

Importing PyTorch takes over a second. A command that needs none of it (help, lists, a request that
is refused) must not wait for that, so packages name what they offer and import it on first use.
"""

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, TypeVar

from fedstill.errors import RequestError

T = TypeVar("T")


def import_object(key: str, path: str) -> Any:
    """The object that ``package.module:Name`` names; ``key`` is the setting that asked for it."""
    module_name, _, attribute = path.partition(":")
    # A command does not have the user's folder on its path, as `python script.py` has.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's code raises while it is imported
        reason = f"{type(error).__name__}: {error}"
        raise RequestError(f"{key}: cannot import '{module_name}': {reason}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise RequestError(f"{key}: '{module_name}' has no '{attribute}'")
        found = getattr(found, part)
    return found


class LazyTable(Mapping[str, T]):
    """A table whose values are named as ``package.module:Name`` and imported when looked up."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def __getitem__(self, name: str) -> T:
        module, _, attribute = self._places[name].partition(":")
        found: T = getattr(importlib.import_module(module), attribute)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._places  # the inherited test would import the value

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return repr(self._places)


class _LazyPackage(ModuleType):
    """A package that imports each of its names from a module when the name is first used."""

    modules: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if name not in self.modules:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        vars(self)[name] = getattr(importlib.import_module(self.modules[name]), name)
        return vars(self)[name]

    def __setattr__(self, name: str, value: Any) -> None:
        # Importing the module `fedstill.run` would set `fedstill.run`, which is the function.
        if not (isinstance(value, ModuleType) and name in self.modules):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *self.modules})


def import_when_used(package: str, modules: Mapping[str, str]) -> None:
    """Let this package have names that are imported from these modules when they are first used.

    For type checkers and readers the package imports the same under ``TYPE_CHECKING``.
    """
    here = sys.modules[package]
    here.__class__ = type("LazyPackage", (_LazyPackage,), {"modules": modules})
