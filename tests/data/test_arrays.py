"""Arrays in memory: every layout that is accepted, and every one that is refused."""

import numpy as np
import pytest
import torch

from fedstill.data import Dataset, arrays
from fedstill.errors import RequestError


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def make(x: object, y: object = (0, 1, 1), **settings: object) -> Dataset:
    return arrays(x, np.array(y), x, np.array(y), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ((3, 8, 9), (1, 8, 9)),
        ((3, 1, 8, 9), (1, 8, 9)),
        ((3, 3, 8, 9), (3, 8, 9)),
        ((3, 8, 9, 3), (3, 8, 9)),
        ((3, 8, 9, 1), (1, 8, 9)),
        ((3, 3, 9, 3), (3, 9, 3)),  # both readings fit: channels come first
        ((3, 5), (5,)),
    ],
)
def test_layouts(given: tuple[int, ...], shape: tuple[int, ...]) -> None:
    x = images(*given)
    data = make(x)
    assert data.shape == shape
    assert data.train.inputs.is_contiguous()
    assert data.train.inputs.dtype == torch.uint8
    assert data.classes == 2
    assert bool(torch.isfinite(data.scaling(data.train.inputs)).all())


def test_channels_last_keeps_the_picture() -> None:
    x = images(3, 8, 9, 3)
    assert np.array_equal(make(x).train.inputs[1, 2].numpy(), x[1, :, :, 2])


def test_tensors_lists_and_arrays_are_the_same_data() -> None:
    x = images(3, 4, 4)
    prints = {make(kind).fingerprint for kind in (x, torch.from_numpy(x), x.astype(int).tolist())}
    assert len(prints) == 1


def test_the_callers_memory_is_not_shared() -> None:
    x = images(3, 1, 4, 4)
    data = make(x)
    before = data.train.inputs.clone()
    x[:] = 0
    assert torch.equal(data.train.inputs, before)


def test_floats_are_used_as_they_are_unless_told() -> None:
    x = np.random.default_rng(0).normal(size=(3, 2, 2))
    data = make(x)
    assert data.train.inputs.dtype == torch.float32
    assert data.scaling.mean == ()
    scaled = make(x, mean=[1.0], std=[2.0])
    expected = (torch.from_numpy(x).float() - 1) / 2
    assert torch.allclose(scaled.scaling(scaled.train.inputs)[:, 0], expected)


def test_owners_and_class_names() -> None:
    data = make(images(3, 4, 4), clients=["b", "a", "b"], class_names=["x", "y", "z"], name="mine")
    assert (data.name, data.classes, data.group_names) == ("mine", 3, ("a", "b"))
    assert data.train.groups is not None
    assert data.train.groups.tolist() == [1, 0, 1]


def test_other_data_have_another_fingerprint() -> None:
    x = images(3, 4, 4)
    other = x.copy()
    other[0, 0, 0] ^= 1
    same = make(x).fingerprint
    assert make(other).fingerprint != same
    assert make(x, y=(0, 1, 0)).fingerprint != same
    assert make(x, class_names=["a", "b"]).fingerprint != same
    assert make(x).fingerprint == same


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (np.full((3, 2, 2), np.nan), (0, 1, 1), r"x_train\[0\]: holds NaN"),
        (images(3, 4, 4), (0, 1), "3 records but y_train"),
        (images(3, 4, 4), (0, 1, -2), r"y_train\[2\]: label -2"),
        (images(3, 4, 4), (0.0, 0.5, 1.0), "give class numbers"),
        (images(3), (0, 1, 1), "cannot be read as records"),
        (images(0, 4, 4), (), "cannot be read as records"),
        (np.full((3, 4, 4), 300), (0, 1, 1), "no image bytes"),
        (np.full((3, 4, 4), "a"), (0, 1, 1), "give uint8 or floats"),
    ],
)
def test_refusals(x: np.ndarray, y: tuple[float, ...], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        make(x, y)


def test_splits_must_agree() -> None:
    y = np.array([0, 1, 1])
    with pytest.raises(RequestError, match="shape"):
        arrays(images(3, 4, 4), y, images(3, 5, 5), y)
    with pytest.raises(RequestError, match="uint8 but x_test"):
        arrays(images(3, 4, 4), y, images(3, 4, 4) / 255, y)
    with pytest.raises(RequestError, match=r"y_test\[0\]: label 2 is out of range for 2"):
        arrays(images(3, 4, 4), y, images(1, 4, 4), np.array([2]))
    with pytest.raises(RequestError, match="give each one an owner"):
        make(images(3, 4, 4), clients=[1, 2])


def test_whole_numbers_as_features_become_floats() -> None:
    x = np.arange(12).reshape(6, 2)
    data = arrays(x, np.arange(6) % 2, x, np.arange(6) % 2)
    assert data.train.inputs.dtype == torch.float32
    assert data.train.inputs.tolist() == x.tolist()
    assert data.table


def test_labels_as_words_and_as_floats() -> None:
    x = images(4, 2, 2)
    for words in (["b", "a", "b", "a"], np.array(["b", "a", "b", "a"], dtype=object)):
        data = arrays(x, words, x[:1], ["a"])
        assert data.class_names == ("a", "b")
        assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([1, 0, 1, 0], [0])
    with pytest.raises(RequestError, match=r"y_test\[0\]: class 'c' does not occur"):
        arrays(x, ["b", "a", "b", "a"], x[:1], ["c"])
    assert arrays(x, [1.0, 2.0, 1.0, 2.0], x[:1], [2.0]).class_names == ("1", "2")


def test_arrays_without_a_test_split() -> None:
    x, y, who = images(30, 2, 2), np.arange(30) % 2, np.arange(30) // 15
    with pytest.warns(UserWarning, match="20% of every class of every client"):
        data = arrays(x, y, clients=who)
    assert (len(data.train), len(data.test)) == (24, 6)
    assert data.train.groups is not None
    assert data.train.groups.bincount().tolist() == [12, 12]
    with pytest.raises(RequestError, match="give both x_test and y_test"):
        arrays(x, y, x)
    with pytest.raises(RequestError, match="too few records to hold some out"):
        arrays(x[:2], y[:2])
