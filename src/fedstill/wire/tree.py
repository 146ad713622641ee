"""Typed values as tensors and plain text, and back.

Messages and states are dataclasses of tensors and scalars. ``flatten`` takes one apart into its
tensors, by dotted name, and a skeleton of JSON values that holds the rest; ``build`` puts it
together again from the type's annotations. No code is ever loaded from bytes.
"""

import dataclasses
import math
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from torch import Tensor

from fedstill.errors import UNREADABLE, WireError
from fedstill.files import HEADER, read_safetensors
from fedstill.wire.layout import write_tensors

_TENSOR = "#"  # where the skeleton points to a tensor of the same dotted name
_NOT_FINITE = ("nan", "inf", "-inf")  # as text: JSON has no such numbers, and would store null


class MalformedError(WireError, ValueError):
    """Bytes or values that do not have the shape of the type they should become."""


def flatten(value: Any, name: str = "") -> tuple[dict[str, Tensor], Any]:
    """The tensors in ``value`` by dotted name, and its skeleton."""
    tensors: dict[str, Tensor] = {}
    return tensors, _take_apart(value, name, tensors)


def _take_apart(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The skeleton of ``value``; its tensors are put into ``tensors``."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return _TENSOR
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return [_take_apart(item, _join(name, str(i)), tensors) for i, item in enumerate(value)]
    if dataclasses.is_dataclass(value):
        value = {field: getattr(value, field) for field in _fields(value.__class__)}
    if isinstance(value, dict | Mapping):  # a dict is recognised faster
        skeleton: dict[str, Any] = {}
        for key, item in value.items():
            place = _join(name, key)
            if isinstance(item, Tensor):  # most are: a network's weights, without a call for each
                tensors[place] = item
                skeleton[key] = _TENSOR
            else:
                skeleton[key] = _take_apart(item, place, tensors)
        return skeleton
    raise TypeError(f"{name or 'value'}: a {type(value).__name__} cannot be stored or sent")


def build(kind: Any, tensors: Mapping[str, Tensor], skeleton: Any, name: str = "") -> Any:
    """The value of type ``kind`` that ``flatten`` took apart."""
    where = name or "value"
    if kind is Tensor:  # first: most are
        if skeleton != _TENSOR or name not in tensors:
            raise MalformedError(f"{where} should be a tensor")
        return tensors[name]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if skeleton is None and type(None) in arguments:
            return None
        kind = next(a for a in arguments if a is not type(None))
        return build(kind, tensors, skeleton, name)
    if origin is tuple:
        if not isinstance(skeleton, list):
            raise MalformedError(f"{where} should be a list")
        kinds = arguments[:1] * len(skeleton) if arguments[-1] is ... else arguments
        if len(kinds) != len(skeleton):
            raise MalformedError(f"{where} should have {len(kinds)} items, not {len(skeleton)}")
        return tuple(
            build(k, tensors, s, _join(name, str(i)))
            for i, (k, s) in enumerate(zip(kinds, skeleton, strict=True))
        )
    if origin is dict or kind is dict:
        if not isinstance(skeleton, dict):
            raise MalformedError(f"{where} should be a table")
        item = arguments[1] if arguments else Tensor
        if item is Tensor and (found := _all_tensors(tensors, skeleton, name)) is not None:
            return found
        return {k: build(item, tensors, s, _join(name, k)) for k, s in skeleton.items()}
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, tensors, skeleton, name)
    if kind is float and skeleton in _NOT_FINITE:
        return float(skeleton)
    try:
        return msgspec.convert(skeleton, kind)
    except msgspec.ValidationError as error:
        raise MalformedError(f"{where}: {error}") from error


def _all_tensors(
    tensors: Mapping[str, Tensor], skeleton: Mapping[str, Any], name: str
) -> dict[str, Tensor] | None:
    """A table of tensors, such as a network's weights, without a call for each; ``None`` if one is
    missing."""
    found: dict[str, Tensor] = {}
    for key, item in skeleton.items():
        tensor = tensors.get(_join(name, key))
        if item != _TENSOR or tensor is None:
            return None
        found[key] = tensor
    return found


@cache
def _fields(kind: Any) -> tuple[str, ...]:
    """The names of a dataclass's fields, in their order."""
    return tuple(field.name for field in dataclasses.fields(kind))


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields, in their order; finding them takes long."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _build_dataclass(kind: Any, tensors: Mapping[str, Tensor], skeleton: Any, name: str) -> Any:
    hints = _hints(kind)
    fields = list(hints)
    if not isinstance(skeleton, dict) or set(skeleton) != set(fields):
        raise MalformedError(f"{name or 'value'} should have the fields {', '.join(fields)}")
    return kind(**{f: build(hints[f], tensors, skeleton[f], _join(name, f)) for f in fields})


def without_names(kind: Any, skeleton: Any) -> Any:
    """The skeleton with every dataclass as the list of its fields: its names are the type's."""
    return _converted(kind, skeleton, lambda fields, item: [item[field] for field in fields])


def with_names(kind: Any, bare: Any) -> Any:
    """The skeleton that ``without_names`` made bare; what does not fit the type is refused."""

    def named(fields: list[str], item: Any) -> dict[str, Any]:
        if not isinstance(item, list) or len(item) != len(fields):
            raise MalformedError(f"a list of the fields {', '.join(fields)} is needed")
        return dict(zip(fields, item, strict=True))

    return _converted(kind, bare, named)


def _converted(kind: Any, item: Any, change: Callable[[list[str], Any], Any]) -> Any:
    """``item`` with ``change`` made to every dataclass in it, the outermost first."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        inner = next(a for a in arguments if a is not type(None))
        return None if item is None else _converted(inner, item, change)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        fields = list(hints)
        changed = change(fields, item)
        if isinstance(changed, dict):
            return {f: _converted(hints[f], changed[f], change) for f in fields}
        pairs = zip(fields, changed, strict=True)
        return [_converted(hints[f], part, change) for f, part in pairs]
    if origin is tuple and isinstance(item, list):
        kinds = arguments[:1] * len(item) if arguments[-1] is ... else arguments
        return [_converted(k, part, change) for k, part in zip(kinds, item, strict=True)]
    if (origin is dict or kind is dict) and isinstance(item, dict) and arguments:
        return {key: _converted(arguments[1], part, change) for key, part in item.items()}
    return item


def dump(value: Any) -> bytes:
    """Exact bytes of a value: the safetensors layout with the skeleton in its header."""
    tensors, skeleton = flatten(value)
    return pack(tensors, {"skeleton": _in_json(skeleton)})


def floats(skeleton: Any) -> Iterator[float]:
    """All floating-point numbers in a skeleton."""
    if isinstance(skeleton, float):
        yield skeleton
    elif isinstance(skeleton, dict | list):
        for item in skeleton.values() if isinstance(skeleton, dict) else skeleton:
            if not isinstance(item, str):  # most are tensors' places
                yield from floats(item)


def is_finite(value: Any) -> bool:
    """Whether no tensor and no number in a typed value is NaN or infinite."""
    tensors, skeleton = flatten(value)
    return all(bool(torch.isfinite(t).all()) for t in tensors.values()) and all(
        map(math.isfinite, floats(skeleton))
    )


def _in_json(skeleton: Any) -> Any:
    """The skeleton with NaN and infinity as text, so that ``build`` restores them exactly."""
    if isinstance(skeleton, dict):
        return {key: _in_json(item) for key, item in skeleton.items()}
    if isinstance(skeleton, list):
        return [_in_json(item) for item in skeleton]
    odd = isinstance(skeleton, float) and not math.isfinite(skeleton)
    return str(skeleton) if odd else skeleton


def load(data: bytes, kind: Any, device: torch.device | str = "cpu") -> Any:
    """The value of type ``kind`` in bytes from ``dump``, its tensors on ``device``."""
    tensors, header = unpack(data)
    return build(kind, to_device(tensors, device), header.get("skeleton"))


def map_file(path: Path, kind: Any) -> Any:
    """The value of type ``kind`` in a file of ``dump``'s bytes.

    Its tensors are mapped, not read: several processes share one copy.
    """
    tensors, header = read_safetensors(path)
    return build(kind, tensors, header["skeleton"])


def to_device(tensors: Mapping[str, Tensor], device: torch.device | str) -> dict[str, Tensor]:
    """The same tensors on another device (no copy where they are there already)."""
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def pack(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> bytes:
    """One safetensors file in memory."""
    text = msgspec.json.encode(header).decode()
    plain: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, tensor in tensors.items():
        value = tensor.detach().contiguous().cpu()
        # safetensors refuses tensors that share memory, such as two views of one array.
        place = value.untyped_storage().data_ptr()
        plain[name] = value.clone() if place in memory else value
        memory.add(place)
    return write_tensors(plain, {HEADER: text})


def unpack(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of bytes from ``pack``."""
    try:
        tensors = parse_tensors(data)
        length = int.from_bytes(data[:8], "little")
        layout = msgspec.json.decode(data[8 : 8 + length], type=dict[str, Any])
        text = layout.get("__metadata__", {}).get(HEADER, "{}")
        header = msgspec.json.decode(text, type=dict[str, Any])
    except (SafetensorError, KeyError, AttributeError, TypeError, *UNREADABLE) as error:
        raise MalformedError(f"not a safetensors message: {error}") from error
    return tensors, header


def _join(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part
