"""Codecs of few bits, and the frame around them."""

import time
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedstill import wire
from fedstill.data import DataSettings, load
from fedstill.errors import WireError
from fedstill.records import SyntheticSet
from fedstill.rng import Rng
from fedstill.scaling import Scaling
from fedstill.wire.bits import BIT_CODECS, BITS, Compressed, Packed
from fedstill.wire.levels import as_sent, from_levels, to_levels

SCALING = Scaling((0.1307,), (0.3081,))
COLOUR = Scaling((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))


@dataclass(frozen=True)
class Sent:
    synthetic: SyntheticSet
    records: int
    loss: float
    extra: Tensor | None = None


def schema(scaling: Scaling = SCALING, shape: tuple[int, ...] = (1, 8, 8)) -> wire.Schema[Sent]:
    return wire.Schema(
        Sent,
        {
            "synthetic.images": wire.TensorSpec(((0, 40), *shape), levels=scaling),
            "synthetic.labels": wire.TensorSpec(((0, 40),), torch.int64, 0, 9),
        },
        {"records": (0, 100), "loss": (0.0, 1e15)},
    )


def digits(number: int = 12) -> Sent:
    data = load(DataSettings())
    order = data.train.labels[:number].argsort(stable=True)
    images = SCALING(data.train.inputs[:number])[order]
    return Sent(SyntheticSet(images, data.train.labels[:number][order].long()), 0, 0.25)


@pytest.mark.parametrize("scaling", [SCALING, COLOUR])
def test_eight_bits_keep_records_exactly(scaling: Scaling) -> None:
    raw = torch.arange(256, dtype=torch.uint8).repeat(len(scaling.mean)).view(1, -1, 16, 16)
    pixels = scaling(raw)
    assert torch.equal(to_levels(pixels, scaling, 8), raw)
    assert torch.equal(from_levels(raw, scaling, 8), pixels)


@pytest.mark.parametrize("bits", BITS)
def test_levels_are_equal_steps_from_black_to_white(bits: int) -> None:
    highest = 2**bits - 1
    levels = torch.arange(highest + 1, dtype=torch.uint8).view(1, 1, 1, -1)
    pixels = SCALING.undo(from_levels(levels, SCALING, bits))
    assert torch.allclose(pixels.flatten(), torch.linspace(0, 1, highest + 1), atol=1e-6)
    outside = SCALING(torch.tensor([-3.0, 0.4 / highest, 7.0]).view(1, 1, 1, 3))
    assert to_levels(outside, SCALING, bits).flatten().tolist() == [0, 0, highest]


def test_the_gradient_passes_the_levels() -> None:
    x = SCALING(torch.rand(3, 1, 4, 4)).requires_grad_(True)
    seen = as_sent(x, SCALING, 2)
    assert torch.allclose(seen, from_levels(to_levels(x, SCALING, 2), SCALING, 2), atol=1e-6)
    (gradient,) = torch.autograd.grad((seen * torch.arange(16.0).view(4, 4)).sum(), x)
    assert torch.equal(gradient, torch.arange(16.0).view(1, 1, 4, 4).expand(3, 1, 4, 4))


@pytest.mark.parametrize("codec", BIT_CODECS)
def test_a_set_arrives_as_its_levels(codec: str) -> None:
    message, bits = digits(), int(codec[4])
    got = wire.decode(wire.encode(message, schema(), codec), schema(), codec)
    expected = as_sent(message.synthetic.images, SCALING, bits)
    assert torch.allclose(got.synthetic.images, expected, atol=1e-6)
    assert torch.equal(got.synthetic.labels, message.synthetic.labels)
    assert (got.records, got.loss, got.extra) == (0, 0.25, None)


@given(st.lists(st.integers(0, 9), max_size=40), st.sampled_from(sorted(BIT_CODECS)))
@settings(max_examples=60, deadline=None)
def test_labels_in_any_order_are_exact(labels: list[int], codec: str) -> None:
    images = torch.rand(len(labels), 1, 8, 8)
    sent = Sent(SyntheticSet(images, torch.tensor(labels, dtype=torch.int64)), 3, 0.0)
    got = wire.decode(wire.encode(sent, schema(), codec), schema(), codec)
    assert got.synthetic.labels.tolist() == labels
    assert len(got.synthetic.images) == len(labels)


def test_the_frame_is_small() -> None:
    """All that is not pixels: format, header, and labels in order."""
    message = digits(20)
    held = len(message.synthetic.labels.unique())
    for codec in ("bits1", "bits4", "bits8"):
        around = len(wire.encode(message, schema(), codec)) - 20 * 64 * int(codec[4]) // 8
        assert around < 35 + 2 * held
    file = len(wire.encode(message, schema(), "uint8")) - 20 * 64 - 8 * 20
    assert file > 300  # what it was before


@given(st.lists(st.floats(-1e4, 1e4, width=32), max_size=30), st.sampled_from(sorted(BIT_CODECS)))
@settings(max_examples=60, deadline=None)
def test_numbers_that_are_no_pixels_have_levels_between_their_ends(
    numbers: list[float], codec: str
) -> None:
    @dataclass(frozen=True)
    class Numbers:
        values: Tensor

    declared = wire.Schema(Numbers, {"values": wire.TensorSpec(((0, 30),))})
    sent = torch.tensor(numbers)
    got = wire.decode(wire.encode(Numbers(sent), declared, codec), declared, codec).values
    assert got.shape == sent.shape
    if numbers:
        step = (max(numbers) - min(numbers)) / (2 ** int(codec[4]) - 1)
        assert float((got - sent).abs().max()) <= step / 2 + 1e-3
        assert float(got.min()) == pytest.approx(min(numbers), abs=1e-3)


def test_noise_is_not_clipped_at_eight_bits() -> None:
    noise = torch.randn(4, 1, 8, 8, generator=Rng(0).torch())
    sent = Sent(SyntheticSet(noise, torch.arange(4)), 0, 0.0)
    got = wire.decode(wire.encode(sent, schema(), "bits8"), schema(), "bits8").synthetic.images
    step = float(noise.max() - noise.min()) / 255
    assert float((got - noise).abs().max()) <= step / 2 + 1e-5
    few = wire.decode(wire.encode(sent, schema(), "bits4"), schema(), "bits4").synthetic.images
    assert float(SCALING.undo(few).min()) == pytest.approx(0, abs=1e-6)  # clipped
    slightly = SCALING(torch.rand(4, 1, 8, 8, generator=Rng(0).torch()) * 1.1 - 0.05)
    near = Sent(SyntheticSet(slightly, torch.arange(4)), 0, 0.0)
    got = wire.decode(wire.encode(near, schema(), "bits8"), schema(), "bits8").synthetic.images
    assert float(SCALING.undo(got).min()) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("bits", BITS)
def test_packing_by_hand(bits: int) -> None:
    levels = np.array([2**bits - 1, 0, 1], np.uint8)
    row = "1" * bits + "0" * bits + "0" * (bits - 1) + "1"
    row = row.ljust(-(-len(row) // 8) * 8, "0")
    assert Packed().pack(levels, bits) == int(row, 2).to_bytes(len(row) // 8)
    assert Packed().unpack(Packed().pack(levels, bits), (3,), bits).tolist() == levels.tolist()


def test_what_does_not_fit_the_levels_is_refused() -> None:
    data = Compressed().pack(np.array([3, 4], np.uint8), 8)
    assert Compressed().unpack(data, (2,), 8).tolist() == [3, 4]
    with pytest.raises(WireError, match="outside the 4 levels of 2 bits"):
        Compressed().unpack(data, (2,), 2)
    with pytest.raises(WireError, match="more than the 1 numbers"):
        Compressed().unpack(data, (1,), 8)
    with pytest.raises(WireError, match="fewer than the 3 numbers"):
        Compressed().unpack(data, (3,), 8)
    with pytest.raises(WireError, match="bits after the last number"):
        Packed().unpack(b"\xff", (3,), 2)
    with pytest.raises(WireError, match="1 bytes for 9 numbers of 1 bits"):
        Packed().unpack(b"\xff", (9,), 1)


@pytest.mark.parametrize("packing", ["", "+zstd"])
@pytest.mark.parametrize("bits", BITS)
def test_levels_are_read_whole_or_not_at_all(bits: int, packing: str) -> None:
    """Those of the context coder: tests/wire/test_context.py."""
    pack = BIT_CODECS[f"bits{bits}{packing}"].packing
    for seed in range(4):
        source = np.random.default_rng(seed)
        levels = source.integers(0, 2**bits, (3 + seed, 1, 8, 8)).astype(np.uint8)
        data = pack.pack(levels, bits)
        assert np.array_equal(pack.unpack(data, levels.shape, bits), levels)
        tails = [tail for n in range(1, 9) for tail in (bytes(n), source.bytes(n))]
        for wrong in (data[:-1], *(data + tail for tail in tails)):
            with pytest.raises(WireError):
                pack.unpack(wrong, levels.shape, bits)


@pytest.mark.parametrize("number", [0, 1, 500])
def test_zstd_reads_one_frame_and_all_of_it(number: int) -> None:
    levels = (np.arange(number) % 7).astype(np.uint8)
    data = Compressed().pack(levels, 8)
    assert Compressed().unpack(data, (number,), 8).tolist() == levels.tolist()
    empty = Compressed().pack(levels[:0], 8)
    for wrong in (data[:-1], data + b"\0", data + b"\0" * 8, data + empty, empty + data, b""):
        with pytest.raises(WireError):
            Compressed().unpack(wrong, (number,), 8)


def test_a_bomb_is_read_no_further_than_declared() -> None:
    bomb = Compressed().pack(np.zeros(200_000_000, np.uint8), 8)
    begun = time.process_time()
    with pytest.raises(WireError, match="more than the 10 numbers"):
        Compressed().unpack(bomb, (10,), 8)
    assert time.process_time() - begun < 0.5


def forged(bare: Any, sizes: Any, numbers: Any, lengths: Any, *payloads: bytes) -> bytes:
    header = msgspec.msgpack.encode([bare, sizes, numbers, lengths])
    return b"\1" + len(header).to_bytes(2, "little") + header + b"".join(payloads)


BARE = [["#", "#"], 0, 0.0, None]
IMAGE = bytes(8)  # one of 8x8 pixels, a bit each
LABEL = msgspec.msgpack.encode([4, 1])


def test_the_forged_message_is_valid_where_nothing_is_wrong() -> None:
    data = forged(BARE, [1, 1], [[]], [8], IMAGE, LABEL)
    got = wire.decode(data, schema(), "bits1")
    assert got.synthetic.labels.tolist() == [4]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a message of this codec"),
        (b"\2\0\0", "not a message of this codec"),
        (b"\1\xff\xff", "the header is malformed"),
        (forged(BARE, [41, 1], [[]], [8], IMAGE, LABEL), "has a size of 41, declared 0 .. 40"),
        (forged(BARE, [-1, 1], [[]], [8], IMAGE, LABEL), "has a size of -1"),
        (forged(BARE, [1], [[]], [8], IMAGE, LABEL), "'synthetic.labels' has a size of -1"),
        (forged(BARE, [1, 1, 1], [[]], [8], IMAGE, LABEL), "more sizes than the declaration"),
        (forged(BARE, [2, 1], [[]], [8], IMAGE, LABEL), "8 bytes for 128 numbers"),
        (forged(BARE, [1, 2], [[]], [8], IMAGE, LABEL), "runs of whole numbers that are not 2"),
        (forged(BARE, [1, 1], [[]], [9], IMAGE, LABEL), "9 bytes for 64 numbers"),
        (forged(BARE, [1, 1], [[]], [99], IMAGE, LABEL), "the header says 99"),
        (forged(BARE, [1, 1], [[]], [-8], IMAGE, LABEL), "as many lengths as tensors"),
        (forged(BARE, [1, 1], [[]], [], IMAGE, LABEL), "as many lengths as tensors"),
        (forged(BARE, [1, 1], [[0.0, 1.0]], [8], IMAGE, LABEL), "range of the numbers"),
        (forged(BARE, [1, 1], [[], []], [8], IMAGE, LABEL), "more numbers of the codec"),
        (forged(BARE[:3], [1, 1], [[]], [8], IMAGE, LABEL), "a list of the fields"),
        (forged({}, [1, 1], [[]], [8], IMAGE, LABEL), "a list of the fields"),
        (forged(["#", 0, 0.0, None], [1, 1], [[]], [8], IMAGE, LABEL), "a list of the fields"),
        (forged([["#", 1], 0, 0.0, None], [1, 1], [[]], [8], IMAGE, LABEL), "should be a tensor"),
        (forged([["#", "#"], "x", 0.0, None], [1, 1], [[]], [8], IMAGE, LABEL), "records"),
        (forged([["#", "#"], 101, 0.0, None], [1, 1], [[]], [8], IMAGE, LABEL), "is 101"),
        (
            forged(BARE, [1, 1], [[]], [8], IMAGE, msgspec.msgpack.encode([4, 2**62])),
            "runs of whole numbers",
        ),
        (
            forged(BARE, [1, 1], [[]], [8], IMAGE, msgspec.msgpack.encode([4, -1, 3, 2])),
            "runs of whole numbers",
        ),
        (
            forged(BARE, [1, 1], [[]], [8], IMAGE, msgspec.msgpack.encode([10, 1])),
            "outside 0 .. 9",
        ),
        (
            forged(BARE, [1, 1], [[]], [8], IMAGE, msgspec.msgpack.encode(b"123")),
            "3 bytes for 1 whole numbers",
        ),
    ],
)
def test_counts_that_lie_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        wire.decode(data, schema(), "bits1")


def test_a_plain_zstd_file_is_no_message() -> None:
    message = wire.encode(digits(), schema(), "uint8")
    for codec in BIT_CODECS:
        with pytest.raises(WireError):
            wire.decode(zstandard.ZstdCompressor().compress(message), schema(), codec)
