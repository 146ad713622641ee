"""The built-in digits in five variants."""

import math

import numpy as np
import pytest
import torch

from fedstill.data import Dataset, DataSettings, load
from fedstill.data.digit_domains import DOMAINS, SIDE, _shipped, enlarged, warped


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load(DataSettings(name="digit-domains"))


def test_five_domains_with_the_split_of_the_digits(data: Dataset) -> None:
    digits = load(DataSettings())
    assert (data.shape, data.classes) == ((1, SIDE, SIDE), 10)
    assert data.group_names == tuple(DOMAINS) == ("plain", "inverted", "photo", "turned", "print")
    assert data.fingerprint.startswith("d620d2bb")
    for mine, theirs in ((data.train, digits.train), (data.test, digits.test)):
        assert mine.groups is not None
        assert torch.bincount(mine.groups).tolist() == [len(theirs)] * 5
        for domain in range(5):
            assert torch.equal(mine.labels[mine.groups == domain], theirs.labels)
    pixels = data.train.inputs.double() / 255  # the constants are those of the public part
    assert data.scaling.mean[0] == pytest.approx(float(pixels.mean()), abs=1e-4)
    assert data.scaling.std[0] == pytest.approx(float(pixels.std()), abs=1e-4)


def test_domains_look_as_they_are_called(data: Dataset) -> None:
    assert data.train.groups is not None
    plain, inverted, photo, turned, printed = (
        data.train.inputs[data.train.groups == g, 0].double() for g in range(5)
    )
    assert torch.equal(inverted, 255 - plain)
    edge = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    edge[:, 0] = edge[:, -1] = True
    assert float(plain[:, edge].std()) < 20 < float(photo[:, edge].std())  # a picture all around
    roughness = [float((x[:, 1:] - x[:, :-1]).abs().mean()) for x in (turned, plain)]
    assert roughness[0] < roughness[1]
    assert float(printed.amin((1, 2)).std()) > 10  # papers of many greys


def test_warping_is_the_slow_loop() -> None:
    stream = np.random.default_rng(0)
    images = stream.integers(0, 256, (2, 6, 6)).astype(np.uint8)
    matrices = np.eye(2) * 0.5 + stream.normal(0, 0.1, (2, 2, 2))
    shifts = stream.normal(0, 1, (2, 2))
    fast = warped(images, matrices, shifts)

    def pixel(image: np.ndarray, row: int, column: int) -> float:
        inside = 0 <= row < 6 and 0 <= column < 6
        return float(image[row, column]) if inside else 0.0

    for n in range(2):
        for i in range(SIDE):
            for j in range(SIDE):
                place = matrices[n] @ (np.array([i, j]) - (SIDE - 1) / 2) + shifts[n] + 2.5
                row, column = (math.floor(p) for p in place)
                down, right = place - [row, column]
                mixed = sum(
                    pixel(images[n], row + a, column + b)
                    * (down if a else 1 - down)
                    * (right if b else 1 - right)
                    for a in (0, 1)
                    for b in (0, 1)
                )
                assert fast[n, i, j] == pytest.approx(mixed, abs=1e-6)
    assert enlarged(np.full((1, 8, 8), 200, dtype=np.uint8))[0, 8, 8] == 200


def test_the_shipped_file_is_what_its_notice_says() -> None:
    photographs, glyphs = _shipped("photographs"), _shipped("glyphs")
    assert photographs.shape == (2, 106, 160)
    assert glyphs.shape == (8, 10, 24, 24)
    samples = pytest.importorskip("sklearn.datasets").load_sample_images()
    for shipped, original in zip(photographs, samples.images, strict=True):
        grey = original[:424] @ np.array([0.299, 0.587, 0.114])
        reduced = grey.reshape(106, 4, 160, 4).mean(axis=(1, 3))
        assert np.abs(reduced - shipped).max() <= 3  # decoders of JPEG differ a little


def test_image_size_and_a_choice_of_domains() -> None:
    few = load(DataSettings(name="digit-domains", image_size=8, domains=("print", "plain")))
    assert (few.shape, few.group_names) == ((1, 8, 8), ("plain", "print"))
    assert len(few.test) == 2 * 359
