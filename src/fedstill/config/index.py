"""What a user can name, and the settings of each, known without importing any of it.

Methods, models and feature maps are modules that import PyTorch, which takes over a second; a list
of them, or the refusal of a misspelled setting, must not wait for it. So ``index.json`` says what
there is. `make index` writes it from the code, and a test fails where the two differ.
"""

import dataclasses
import typing
from functools import cache
from importlib import resources
from typing import Any

import msgspec


class Entry(msgspec.Struct, frozen=True):
    """A line about something that can be named, and the types of its settings."""

    about: str
    settings: dict[str, str] = {}  # the types as Python writes them

    def settings_class(self) -> type[Any]:
        """A dataclass of the settings, to check a section with."""
        names = {"typing": typing, "msgspec": msgspec}
        fields = [
            (name, eval(text, names), dataclasses.field(default=None))  # our own file
            for name, text in self.settings.items()
        ]
        return dataclasses.make_dataclass("Settings", fields, frozen=True)


class Index(msgspec.Struct, frozen=True):
    """The entries by name."""

    methods: dict[str, Entry]
    models: dict[str, Entry]
    features: dict[str, Entry]


@cache
def index() -> Index:
    """The index that is shipped."""
    return msgspec.json.decode(_text(), type=Index)


def _text() -> bytes:
    return resources.files("fedstill.config").joinpath("index.json").read_bytes()


def described(cls: type[Any], about: str, without: tuple[str, ...] = ()) -> Entry:
    """The entry of a class whose fields are its settings."""
    hints = typing.get_type_hints(cls, include_extras=True)
    names = [field.name for field in dataclasses.fields(cls) if field.name not in without]
    return Entry(about, {name: _written(hints[name]) for name in names})


def _written(hint: Any) -> str:
    """A type as Python writes it: what ``settings_class`` reads back."""
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else repr(hint)


def as_json(found: Index) -> bytes:
    """The index as the file's contents."""
    return msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"
