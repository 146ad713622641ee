import struct
from dataclasses import dataclass
from random import Random

import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedstill import wire
from fedstill.errors import RequestError, WireError
from fedstill.types import Params
from fedstill.wire import tree


@dataclass(frozen=True)
class Message:
    update: Params
    labels: Tensor
    records: int


SCHEMA = wire.Schema(
    Message,
    {
        "update.a.weight": wire.TensorSpec((2, 3)),
        "update.b": wire.TensorSpec(((0, 5),)),
        "labels": wire.TensorSpec(((0, 4),), torch.int64, 0, 9),
    },
    {"records": (1, 100)},
)


def message(
    a: Tensor | None = None,
    b: Tensor | None = None,
    labels: list[int] | None = None,
    records: int = 7,
) -> Message:
    update = {
        "a.weight": torch.arange(6.0).view(2, 3) if a is None else a,
        "b": torch.tensor([1.5, -2.5]) if b is None else b,
    }
    return Message(update, torch.tensor(labels if labels is not None else [1, 9]), records)


floats = st.floats(-1e4, 1e4, width=32)


@given(
    st.lists(floats, min_size=6, max_size=6),
    st.lists(floats, max_size=5),
    st.lists(st.integers(0, 9), max_size=4),
    st.integers(1, 100),
    st.sampled_from(sorted(wire.CODECS)),
)
@settings(max_examples=60, deadline=None)
def test_round_trip(
    a: list[float], b: list[float], labels: list[int], records: int, codec: str
) -> None:
    sent = Message(
        {"a.weight": torch.tensor(a).view(2, 3), "b": torch.tensor(b)},
        torch.tensor(labels, dtype=torch.int64),
        records,
    )
    got = wire.decode(wire.encode(sent, SCHEMA, codec), SCHEMA, codec)
    assert torch.equal(got.labels, sent.labels)
    assert got.records == sent.records
    for name, value in sent.update.items():
        if not value.numel():
            continue
        error = (got.update[name] - value).abs().max()
        spread = value.max() - value.min()
        bound = {
            "float32": 0.0,
            "float16": float(value.abs().max()) / 1024,
            "uint8": float(spread) / 500,
            **{f"bits{bits}": float(spread) / (2**bits - 1) / 2 for bits in (8, 4, 3, 2, 1)},
        }
        rounding = 1e-7 + 1e-6 * float(value.abs().max())
        assert error <= bound[codec.partition("+")[0]] + rounding
        if codec.startswith("float32"):
            assert torch.equal(got.update[name], value)


def test_equal_messages_have_equal_bytes() -> None:
    assert wire.encode(message(), SCHEMA) == wire.encode(message(), SCHEMA)


def test_bytes_are_the_payload_and_a_header() -> None:
    data = wire.encode(message(), SCHEMA)
    header = 8 + struct.unpack("<Q", data[:8])[0]
    assert len(data) - header == 4 * 6 + 4 * 2 + 8 * 2
    assert SCHEMA.payload("float32") == 4 * 6 + 4 * 5 + 8 * 4
    assert SCHEMA.payload("uint8") == 6 + 5 + 8 * 4
    assert SCHEMA.payload("float16+zstd") == 2 * 6 + 2 * 5 + 8 * 4


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (message(a=torch.zeros(3, 2)), "update.a.weight' has shape (3, 2)"),
        (message(a=torch.zeros(6)), "has shape (6,)"),
        (message(b=torch.zeros(6)), "update.b' has shape (6,)"),
        (message(a=torch.zeros(2, 3, dtype=torch.float64)), "has type float64"),
        (message(a=torch.full((2, 3), torch.nan)), "holds NaN"),
        (message(b=torch.tensor([torch.inf])), "holds NaN or infinity"),
        (message(labels=[10]), "outside 0 .. 9"),
        (message(labels=[-1]), "outside 0 .. 9"),
        (message(records=0), "'records' is 0"),
    ],
)
def test_what_was_not_declared_is_refused_on_both_sides(bad: Message, reason: str) -> None:
    with pytest.raises(WireError, match=_literal(reason)):
        wire.encode(bad, SCHEMA)
    tensors, skeleton = tree.flatten(bad)
    forged = tree.pack(tensors, {"skeleton": skeleton})
    # The codec's type check may come first: what counts is the refusal.
    with pytest.raises(WireError):
        wire.decode(forged, SCHEMA)


def _literal(text: str) -> str:
    import re

    return re.escape(text)


def test_missing_and_extra_tensors_are_refused() -> None:
    tensors, skeleton = tree.flatten(message())
    extra = {**tensors, "update.c": torch.zeros(1)}
    grown = {**skeleton, "update": {**skeleton["update"], "c": "#"}}
    with pytest.raises(WireError, match=r"'update\.c' was not declared"):
        wire.decode(tree.pack(extra, {"skeleton": grown}), SCHEMA)
    fewer = {k: v for k, v in tensors.items() if k != "update.b"}
    shrunk = {**skeleton, "update": {"a.weight": "#"}}
    with pytest.raises(WireError, match=r"'update\.b' is missing"):
        wire.decode(tree.pack(fewer, {"skeleton": shrunk}), SCHEMA)


@given(st.binary(max_size=400), st.sampled_from(sorted(wire.CODECS)))
@settings(max_examples=150, deadline=None)
def test_garbage_is_refused(data: bytes, codec: str) -> None:
    with pytest.raises(WireError):
        wire.decode(data, SCHEMA, codec)


@given(st.data(), st.sampled_from(sorted(wire.CODECS)))
@settings(max_examples=150, deadline=None)
def test_a_flipped_byte_is_refused_or_stays_within_the_declaration(
    data: st.DataObject, codec: str
) -> None:
    good = bytearray(wire.encode(message(), SCHEMA, codec))
    place = data.draw(st.integers(0, len(good) - 1))
    good[place] ^= data.draw(st.integers(1, 255))
    try:
        got = wire.decode(bytes(good), SCHEMA, codec)
    except WireError:
        return
    SCHEMA.check(got)


@given(st.integers(0, 300))
@settings(max_examples=40, deadline=None)
def test_a_cut_message_is_refused(length: int) -> None:
    data = wire.encode(message(), SCHEMA)
    with pytest.raises(WireError):
        wire.decode(data[: min(length, len(data) - 1)], SCHEMA)


def test_a_huge_message_is_refused_unread() -> None:
    with pytest.raises(WireError, match="declared"):
        wire.decode(b"\0" * 10_000_000, SCHEMA)


def test_a_compression_bomb_does_not_go_off() -> None:
    bomb = zstandard.ZstdCompressor().compress(b"\0" * 200_000_000)
    assert len(bomb) < SCHEMA.limit("float32+zstd") * 10
    small = bomb[: SCHEMA.limit("float32+zstd")]
    with pytest.raises(WireError):
        wire.decode(small, SCHEMA, "float32+zstd")
    tight = zstandard.ZstdCompressor(level=19).compress(b"\0" * 40_000_000)
    assert len(tight) < SCHEMA.limit("float32+zstd")
    with pytest.raises(WireError, match="once decompressed"):
        wire.decode(tight, SCHEMA, "float32+zstd")


@pytest.mark.parametrize("codec", ["float32+zstd", "float16+zstd", "uint8+zstd"])
def test_bytes_after_a_compressed_message_are_refused(codec: str) -> None:
    data = wire.encode(message(), SCHEMA, codec)
    wire.decode(data, SCHEMA, codec)
    tails = [Random(n).randbytes(n) for n in range(1, 9)]
    for wrong in (data[:-1], *(data + tail for tail in tails), data + data):
        with pytest.raises(WireError, match=r"zstd|cut off, or bytes after"):
            wire.decode(wrong, SCHEMA, codec)


def test_float16_overflow_is_refused_by_the_sender() -> None:
    with pytest.raises(WireError, match="too large for the codec float16"):
        wire.encode(message(a=torch.full((2, 3), 1e6)), SCHEMA, "float16")


def test_a_codec_mismatch_is_refused() -> None:
    with pytest.raises(WireError, match="came as float32, the codec is float16"):
        wire.decode(wire.encode(message(), SCHEMA, "float32"), SCHEMA, "float16")


@pytest.mark.parametrize("ranges", [None, {}, {"update.b": "x"}, {"update.b": [1, None]}])
def test_uint8_without_sound_ranges_is_refused(ranges: object) -> None:
    tensors, skeleton = tree.flatten(message())
    coded = {k: v.to(torch.uint8) if v.is_floating_point() else v for k, v in tensors.items()}
    header = (
        {"skeleton": skeleton, "ranges": ranges} if ranges is not None else {"skeleton": skeleton}
    )
    with pytest.raises(WireError):
        wire.decode(tree.pack(coded, header), SCHEMA, "uint8")


@pytest.mark.parametrize("ranges", [[], "x", 3, {"update.b": [True, True]}])
def test_ranges_of_any_other_kind_are_refused(ranges: object) -> None:
    tensors, skeleton = tree.flatten(message())
    coded = {k: v.to(torch.uint8) if v.is_floating_point() else v for k, v in tensors.items()}
    with pytest.raises(WireError):
        wire.decode(tree.pack(coded, {"skeleton": skeleton, "ranges": ranges}), SCHEMA, "uint8")


def test_what_belongs_to_no_field_is_refused_too() -> None:
    """A tensor that the skeleton does not name, and bytes after the compressed frame."""
    tensors, skeleton = tree.flatten(message())
    extra = tree.pack({**tensors, "extra": torch.zeros(9)}, {"skeleton": skeleton})
    with pytest.raises(WireError, match="'extra' was not declared"):
        wire.decode(extra, SCHEMA)
    with pytest.raises(WireError):
        wire.decode(wire.encode(message(), SCHEMA, "uint8+zstd") + b"more", SCHEMA, "uint8+zstd")


def test_zstd_makes_a_compressible_message_smaller() -> None:
    schema = wire.Schema(Message, {**SCHEMA.tensors, "update.b": wire.TensorSpec((5000,))}, {})
    zeros = message(b=torch.zeros(5000))
    assert len(wire.encode(zeros, schema, "float32+zstd")) < len(wire.encode(zeros, schema)) / 10


def test_an_unknown_codec_names_the_nearest() -> None:
    with pytest.raises(RequestError, match=r"wire\.up: no codec 'float61'; did you mean 'float16'"):
        wire.find_codec("float61", "wire.up")
