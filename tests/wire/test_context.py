"""The arithmetic coder and the context coder: exact, close to the entropy, bounded."""

import contextlib
import math
import random
import time
from collections.abc import Iterator

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstill.data import DataSettings, load
from fedstill.errors import WireError
from fedstill.wire.arithmetic import ONE, Decoder, Encoder
from fedstill.wire.context import Model, Pixels, decode_images, encode_images

shapes = st.tuples(st.integers(0, 4), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6))


def coded(bits: list[int], probabilities: list[int]) -> bytes:
    encoder = Encoder()
    encoder.write(bits, probabilities)
    return encoder.finished()


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, ONE - 1)), max_size=300))
@settings(max_examples=200, deadline=None)
def test_bits_come_back(pairs: list[tuple[int, int]]) -> None:
    bits, probabilities = [b for b, _ in pairs], [p for _, p in pairs]
    data = coded(bits, probabilities)
    decoder = Decoder(data)
    assert decoder.read(probabilities) == bits
    assert decoder.complete
    ideal = sum(-math.log2((p if b else ONE - p) / ONE) for b, p in pairs) / 8
    assert len(data) <= ideal * 1.001 + 2


def test_a_carry_of_the_last_bytes_is_not_lost() -> None:
    """Found by chance: the shortest end was no byte at all, but a carry."""
    source = random.Random(1)
    for _ in range(3000):
        probabilities = [source.randrange(1, ONE) for _ in range(source.randrange(40))]
        bits = [source.randrange(2) for _ in probabilities]
        assert Decoder(coded(bits, probabilities)).read(probabilities) == bits


def test_a_carry_runs_through_full_bytes() -> None:
    """Bits that always take the upper part end near the end of the interval."""
    source = random.Random(0)
    for _ in range(200):
        probabilities = [source.choice([1, 2, ONE - 1, ONE // 2]) for _ in range(400)]
        bits = [int(source.random() < 0.02) for _ in probabilities]
        assert Decoder(coded(bits, probabilities)).read(probabilities) == bits


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
@given(st.data())
@settings(max_examples=25, deadline=None)
def test_images_come_back(bits: int, data: st.DataObject) -> None:
    shape = data.draw(shapes)
    number = math.prod(shape)
    values = data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=number, max_size=number))
    images = np.array(values, np.uint8).reshape(shape)
    again = decode_images(encode_images(images, bits), shape, bits)
    assert again.dtype == np.uint8
    assert np.array_equal(again, images)


def digits(number: int, bits: int) -> Pixels:
    raw = load(DataSettings()).train.inputs[:number].numpy()
    levels: Pixels = np.round(raw / 255 * (2**bits - 1)).astype(np.uint8)
    return levels


@pytest.mark.parametrize(("bits", "share"), [(1, 0.9), (2, 0.9), (4, 1.0)])
def test_digits_are_smaller_than_with_zstd(bits: int, share: float) -> None:
    """Of 8x8 pixels, which have few neighbours; those of 28x28 need half of zstd's bytes."""
    images = digits(60, bits)
    rival = zstandard.ZstdCompressor(level=19).compress(images.tobytes())
    assert len(encode_images(images, bits)) < share * len(rival)


def test_noise_costs_what_it_holds() -> None:
    noise = np.random.default_rng(0).integers(0, 2, (20, 1, 16, 16)).astype(np.uint8)
    assert len(encode_images(noise, 1)) < 1.25 * noise.size / 8


def test_the_bytes_are_the_same_everywhere() -> None:
    """Integer arithmetic alone: these bytes were written once and must never change."""
    images = (np.arange(2 * 3 * 4 * 5) * 7 // 3 % 4).astype(np.uint8).reshape(2, 3, 4, 5)
    expected = "f000255bcc55bf788f2be469594230f240eed851c52942b79d39e8d6249394fe1d2efe17e9"
    assert encode_images(images, 2).hex() == expected


def test_too_short_and_too_long_is_refused() -> None:
    images = digits(5, 4)
    data = encode_images(images, 4)
    for wrong in (data[: len(data) // 2], b"", data + bytes(9), data + data):
        with pytest.raises(WireError, match="too short or too long"):
            decode_images(wrong, images.shape, 4)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_a_byte_less_and_a_few_more_are_no_encoding_of_the_images(bits: int, seed: int) -> None:
    """They are refused, unless they are what the encoder writes for other images."""
    source = np.random.default_rng(seed)
    noise = source.integers(0, 2**bits, (3, 1 + seed % 3, 7, 6)).astype(np.uint8)
    for images in (noise, digits(12, bits)[2 * seed :]):
        data = encode_images(images, bits)
        assert np.array_equal(decode_images(data, images.shape, bits), images)
        for wrong in (data[:-1], *(data + source.bytes(n) for n in range(1, 9))):
            with contextlib.suppress(WireError):
                other = decode_images(wrong, images.shape, bits)
                assert not np.array_equal(other, images)
                assert encode_images(other, bits) == wrong
        for zeros in range(1, 9):
            with pytest.raises(WireError, match="too short or too long"):
                decode_images(data + bytes(zeros), images.shape, bits)


@given(st.binary(max_size=12), st.lists(st.integers(1, ONE - 1), max_size=40))
@settings(max_examples=500, deadline=None)
def test_only_what_the_encoder_writes_is_complete(data: bytes, probabilities: list[int]) -> None:
    decoder = Decoder(data)
    bits = decoder.read(probabilities)
    assert decoder.complete == (coded(bits, probabilities) == data)


def test_other_bytes_of_the_same_interval_are_not_complete() -> None:
    """Every last byte: a few decode to the same bits, one is what the encoder writes."""
    probabilities = [ONE // 3] * 50
    data = coded([1, 0, 0, 1, 0] * 10, probabilities)
    complete = []
    for last in range(256):
        decoder = Decoder(data[:-1] + bytes([last]))
        bits = decoder.read(probabilities)
        assert decoder.complete == (coded(bits, probabilities) == data[:-1] + bytes([last]))
        complete += [last] if decoder.complete and bits == [1, 0, 0, 1, 0] * 10 else []
    assert complete == [data[-1]]


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pixel positions that are coded, as they are."""
    found: list[int] = []
    plain = Model.places

    def counted(model: Model) -> Iterator[tuple[int, int, int]]:
        for place in plain(model):
            found.append(len(found))
            yield place

    monkeypatch.setattr(Model, "places", counted)
    return found


LARGE = (4, 3, 224, 224)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_a_payload_that_no_images_of_this_size_have_is_not_decoded(
    bits: int, places: list[int]
) -> None:
    for data in (b"", bytes(20), b"\xff" * 20):
        with pytest.raises(WireError, match="too short or too long"):
            decode_images(data, LARGE, bits)
    assert places == []


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_decoding_ends_where_the_bytes_do(bits: int, places: list[int]) -> None:
    noise = np.random.default_rng(0).integers(0, 2**bits, (4, 1, 32, 32)).astype(np.uint8)
    data = encode_images(noise, bits)
    places.clear()
    with pytest.raises(WireError, match="too short or too long"):
        decode_images(data[: len(data) // 10], noise.shape, bits)
    assert 32 * 32 // 20 < len(places) < 32 * 32 // 5


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_the_cheapest_images_are_not_too_short(bits: int) -> None:
    """All white, or all black: no image has fewer bytes."""
    for level in (0, 2**bits - 1):
        images = np.full((400, 1, 10, 10), level, np.uint8)
        data = encode_images(images, bits)
        assert np.array_equal(decode_images(data, images.shape, bits), images)


def test_no_images_take_no_time(places: list[int]) -> None:
    assert encode_images(np.zeros((0, *LARGE[1:]), np.uint8), 8) == b""
    assert decode_images(b"", (0, *LARGE[1:]), 8).shape == (0, *LARGE[1:])
    assert places == []


@given(st.binary(max_size=200))
@settings(max_examples=50, deadline=None)
def test_any_bytes_end_in_images_or_a_refusal(data: bytes) -> None:
    try:
        images = decode_images(data, (2, 1, 5, 5), 3)
    except WireError:
        return
    assert images.shape == (2, 1, 5, 5)
    assert int(images.max()) < 8


def test_hostile_bytes_take_no_longer_than_honest_ones() -> None:
    images = digits(20, 4)
    data = encode_images(images, 4)
    begun = time.process_time()
    decode_images(data, images.shape, 4)
    honest = time.process_time() - begun
    for hostile in (b"\xff" * len(data), bytes(len(data)), b"\x00\xff" * 5000):
        begun = time.process_time()
        with contextlib.suppress(WireError):
            decode_images(hostile, images.shape, 4)
        assert time.process_time() - begun < 5 * honest + 0.2
