"""A message in few bytes: what both sides know from its declaration is not sent.

    1 byte      the format
    2 bytes     length of the header
    header      MessagePack: the message without its names and tensors, the dimensions that the
                declaration leaves open, the codec's numbers, the lengths of all payloads but the
                last
    payloads    of the tensors in the order of their names

A set of images has 30 to 60 bytes around its pixels; as a safetensors file it has about 400.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from fedstill.errors import UNREADABLE, WireError
from fedstill.wire import tree
from fedstill.wire.bits import Bits
from fedstill.wire.schema import M, Schema
from fedstill.wire.spec import TensorSpec

_FORMAT = 1
_START = 3  # bytes before the header
_MOST_HEADER = 0xFFFF

_Header = tuple[Any, list[int], list[list[float]], list[int]]


def encode_frame(message: Any, schema: Schema[Any], codec: Bits) -> bytes:
    """The bytes of a message that is as declared."""
    tensors, skeleton = tree.flatten(message)
    open_sizes: list[int] = []
    numbers: list[list[float]] = []
    payloads: list[bytes] = []
    for name, spec in sorted(schema.tensors.items()):
        value = tensors[name].detach()
        open_sizes += [
            size
            for size, declared in zip(value.shape, spec.shape, strict=True)
            if not isinstance(declared, int)
        ]
        if spec.dtype.is_floating_point:
            payload, needed = codec.encode(value, spec)
            numbers.append(needed)
        else:
            payload = _exact(value)
        payloads.append(payload)
    lengths = [len(payload) for payload in payloads[:-1]]
    bare = tree.without_names(schema.type, skeleton)
    header = msgspec.msgpack.encode((bare, open_sizes, numbers, lengths))
    if len(header) > _MOST_HEADER:
        raise WireError(f"a header of {len(header):,} bytes is too long for this codec")
    start = bytes([_FORMAT]) + len(header).to_bytes(2, "little")
    return b"".join((start, header, *payloads))


def decode_frame(data: bytes, schema: Schema[M], codec: Bits, device: Any) -> M:
    """The message in these bytes. Sizes are checked before anything of that size is made."""
    if len(data) < _START or data[0] != _FORMAT:
        raise WireError("not a message of this codec")
    end = _START + int.from_bytes(data[1:_START], "little")
    try:
        bare, open_sizes, numbers, lengths = msgspec.msgpack.decode(
            data[_START:end], type=_Header, strict=True
        )
    except (msgspec.DecodeError, *UNREADABLE) as error:
        raise WireError(f"the header is malformed: {error}") from error
    shapes = dict(_shapes(schema, open_sizes))
    ranges = iter(numbers)
    tensors: dict[str, Tensor] = {}
    for name, payload in _payloads(schema, data[end:], lengths):
        spec = schema.tensors[name]
        if spec.dtype.is_floating_point:
            tensors[name] = codec.decode(payload, shapes[name], spec, next(ranges, []))
        else:
            tensors[name] = _whole_numbers(payload, shapes[name], spec)
    if next(ranges, None) is not None:
        raise WireError("more numbers of the codec than tensors")
    skeleton = tree.with_names(schema.type, bare)
    message: M = tree.build(schema.type, tree.to_device(tensors, device), skeleton)
    return message


def _shapes(
    schema: Schema[Any], open_sizes: Sequence[int]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The shape of every tensor, within its declaration."""
    given = iter(open_sizes)
    for name, spec in sorted(schema.tensors.items()):
        shape = []
        for declared in spec.shape:
            size = declared if isinstance(declared, int) else next(given, -1)
            least, most = (size, size) if isinstance(declared, int) else declared
            if not least <= size <= most:
                raise WireError(f"'{name}' has a size of {size}, declared {least} .. {most}")
            shape.append(size)
        yield name, tuple(shape)
    if next(given, None) is not None:
        raise WireError("more sizes than the declaration leaves open")


def _payloads(
    schema: Schema[Any], body: bytes, lengths: Sequence[int]
) -> Iterator[tuple[str, bytes]]:
    """The bytes of every tensor: together they are the body."""
    names = sorted(schema.tensors)
    if len(lengths) != max(0, len(names) - 1) or min(lengths, default=0) < 0:
        raise WireError("as many lengths as tensors but the last are needed")
    rest = len(body) - sum(lengths)
    if rest < 0 or (not names and rest):
        raise WireError(f"{len(body):,} bytes of tensors, the header says {sum(lengths):,}")
    place = 0
    for name, length in zip(names, [*lengths, rest], strict=False):
        yield name, body[place : place + length]
        place += length


def _exact(value: Tensor) -> bytes:
    """Whole numbers: runs of equal ones (labels in order), or all of them, whichever is shorter."""
    flat = value.cpu().numpy().reshape(-1)
    changes = np.flatnonzero(np.diff(flat)) + 1
    starts = np.concatenate([[0], changes]) if len(flat) else changes
    counts = np.diff([*starts.tolist(), len(flat)])
    runs = [number for run in zip(flat[starts], counts, strict=True) for number in map(int, run)]
    packed = msgspec.msgpack.encode(runs)
    plain = msgspec.msgpack.encode(flat.tobytes())
    return min(packed, plain, key=len)


def _whole_numbers(data: bytes, shape: tuple[int, ...], spec: TensorSpec) -> Tensor:
    """The whole numbers that ``_exact`` wrote, exactly as many as declared."""
    number = math.prod(shape)
    try:
        found = msgspec.msgpack.decode(data, type=bytes | list[int])
    except (msgspec.DecodeError, *UNREADABLE) as error:
        raise WireError(f"whole numbers are malformed: {error}") from error
    if isinstance(found, bytes):
        if len(found) != number * spec.dtype.itemsize:
            raise WireError(f"{len(found):,} bytes for {number:,} whole numbers")
        flat = torch.frombuffer(bytearray(found), dtype=spec.dtype) if found else None
        return torch.zeros(shape, dtype=spec.dtype) if flat is None else flat.view(shape)
    values, counts = found[::2], found[1::2]
    if len(values) != len(counts) or min(counts, default=1) < 1 or sum(counts) != number:
        raise WireError(f"runs of whole numbers that are not {number:,} in all")
    each = torch.tensor(values, dtype=spec.dtype)
    return each.repeat_interleave(torch.tensor(counts, dtype=torch.int64)).view(shape)
