"""Messages as bytes, checked by both sides and counted to the byte.

Every message, on every engine, passes through ``encode`` and ``decode``. A method declares what
its messages look like (a ``Schema``); whatever differs from that is refused before a single
number of it reaches the model: wrong names, shapes, types, values out of range, NaN and
infinity, and anything larger than the declaration allows.
"""

from typing import Any

import torch
from torch import Tensor

from fedstill.errors import WireError
from fedstill.wire import tree
from fedstill.wire.bits import Bits
from fedstill.wire.codecs import Codec, find_codec
from fedstill.wire.frame import decode_frame, encode_frame
from fedstill.wire.schema import M, Schema
from fedstill.wire.spec import TensorSpec, short_name


def encode(message: Any, schema: Schema[Any], codec: str = "float32") -> bytes:
    """The message's bytes. A message that differs from its declaration is refused here already."""
    writer = find_codec(codec)
    tensors, skeleton = tree.flatten(message)
    if isinstance(writer, Codec):
        form = schema.flat if writer.exact and schema.flat and schema.flat.fits(tensors) else None
        if form is not None and form.accepts(flat := form.joined(tensors)):
            schema.check_numbers(skeleton)
            return writer.pack(form.write(flat, {"skeleton": skeleton}))
    schema.check_form(tensors)
    schema.check_values(tensors, skeleton)
    if isinstance(writer, Bits):
        return encode_frame(message, schema, writer)
    ranges: dict[str, tuple[float, ...]] = {}
    coded: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if not value.dtype.is_floating_point:
            coded[name] = value
            continue
        coded[name], numbers = writer.encode(name, value)
        if numbers is not None:
            ranges[name] = numbers
    header: dict[str, Any] = {"skeleton": skeleton}
    if ranges:
        header["ranges"] = ranges
    return writer.pack(tree.pack(coded, header))


def decode(
    data: bytes,
    schema: Schema[M],
    codec: str = "float32",
    device: torch.device | str = "cpu",
) -> M:
    """The message in these bytes, or a ``WireError`` that says what is wrong with it."""
    limit = schema.limit(codec)
    if len(data) > limit:
        raise WireError(f"{len(data):,} bytes, at most {limit:,} declared")
    reader = find_codec(codec)
    try:
        if isinstance(reader, Bits):
            message = decode_frame(data, schema, reader, device)
        else:
            plain = reader.unpack(data, limit)
            if reader.exact and (checked := _decode_flat(plain, schema, device)) is not None:
                return checked
            message = _decode_file(plain, schema, reader, device)
    except tree.MalformedError as error:
        raise WireError(str(error)) from error
    except (TypeError, ValueError, RuntimeError, OverflowError, AttributeError) as error:
        raise WireError(f"malformed message: {error}") from error
    schema.check(message)
    return message


def _decode_flat(data: bytes, schema: Schema[M], device: torch.device | str) -> M | None:
    """A message whose form is fixed, checked; ``None``: it must be read as any other."""
    form = schema.flat
    if form is None or (found := form.read(data)) is None:
        return None
    flat, header = found
    if header.keys() != {"skeleton"} or not form.accepts(flat):
        return None
    tensors = form.tensors(flat.to(device))
    message: M = tree.build(schema.type, tensors, header["skeleton"])
    # All tensors are of the right form and finite. What is left: whether the message has them all.
    received, skeleton = tree.flatten(message)
    if received.keys() != tensors.keys():
        schema.check_form(received)
    schema.check_numbers(skeleton)
    return message


def _decode_file(data: bytes, schema: Schema[M], reader: Codec, device: torch.device | str) -> M:
    """A message as a safetensors file, with everything that the codec left of it."""
    tensors, header = tree.unpack(data)
    if undeclared := sorted(set(tensors) - set(schema.tensors)):
        raise WireError(f"{schema.type.__name__}: tensor '{undeclared[0]}' was not declared")
    ranges = header.get("ranges", {})
    if not isinstance(ranges, dict):
        raise WireError("the ranges of the codec are not a table")
    for name, spec in schema.tensors.items():
        if name in tensors and spec.dtype.is_floating_point:
            tensors[name] = _restore(name, tensors[name], spec, reader, ranges.get(name))
    message: M = tree.build(schema.type, tree.to_device(tensors, device), header.get("skeleton"))
    return message


def _restore(name: str, value: Tensor, spec: TensorSpec, reader: Codec, header: Any) -> Tensor:
    if value.dtype != reader.dtype:
        expected = short_name(reader.dtype)
        raise WireError(f"'{name}' came as {short_name(value.dtype)}, the codec is {expected}")
    return reader.decode(name, value, header, spec.dtype)
