"""Writers and domains: data whose records have natural owners."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstill.data import DataSettings, load
from fedstill.data.natural import every_fifth
from fedstill.errors import RequestError

from .conftest import Hub, Stored, Writer, png


def refused(settings: DataSettings) -> str:
    with pytest.raises(RequestError) as caught:
        load(settings)
    message = str(caught.value)
    assert "\n" not in message
    return message


@settings(max_examples=60, deadline=None)
@given(owners=st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_every_fifth_record_of_each_owner_is_held_out(owners: list[int]) -> None:
    held = every_fifth(np.array(owners))
    seen: dict[int, int] = {}
    expected = []
    for row, owner in enumerate(owners):
        seen[owner] = seen.get(owner, 0) + 1
        if seen[owner] % 5 == 0:
            expected.append(row)
    assert np.flatnonzero(held).tolist() == expected


@pytest.fixture
def femnist(tmp_path: Path, write_parquet: Writer) -> Path:
    """The schema of flwrlabs/femnist: no test split, the label called character."""
    return write_parquet(
        tmp_path / "femnist" / "train.parquet",
        [png(i, size=(28, 28)) for i in range(12)],
        [i % 3 for i in range(12)],
        ["0", "A", "a"],
        label_column="character",
        writer_id=pa.array(["f0001_14", "f0000_14"] * 6),
        hsf_id=pa.array([0] * 12),
    )


@pytest.mark.parametrize("hub", [True, False])
def test_femnist_has_a_client_a_writer(femnist: Path, fake_hub: Hub, hub: bool) -> None:
    fake_hub["flwrlabs/femnist", None] = {"train": Stored(femnist)}
    folder = None if hub else str(femnist.parent.parent)
    data = load(DataSettings(name="femnist", dir=folder))
    assert (data.shape, data.class_names) == ((1, 28, 28), ("0", "A", "a"))
    assert data.group_names == ("f0000_14", "f0001_14")
    assert data.train.groups is not None
    assert data.train.groups.tolist() == [1, 0] * 4 + [1, 0]
    assert data.test.inputs[:, 0, 0, 0].tolist() == [8, 9]  # the fifth of each
    assert data.scaling.mean == (0.5,)


def test_owners_with_too_few_records_for_a_test(femnist: Path, write_parquet: Writer) -> None:
    few = pa.array(["a", "b", "c", "a"])
    write_parquet(femnist, [png(0)] * 4, [0, 1, 0, 1], writer_id=few)
    message = refused(DataSettings(name="femnist", dir=str(femnist.parent.parent)))
    assert "no owner has five records" in message
    assert "test.parquet" in message


def test_a_test_split_that_is_there_is_taken(femnist: Path, write_parquet: Writer) -> None:
    write_parquet(
        femnist.parent / "test.parquet",
        [png(200, size=(28, 28))] * 2,
        [1, 2],
        ["0", "A", "a"],
        label_column="character",
        writer_id=pa.array(["f0009_01", "f0001_14"]),
    )
    data = load(DataSettings(name="femnist", dir=str(femnist.parent.parent)))
    assert (len(data.train), len(data.test)) == (12, 2)
    assert data.group_names == ("f0000_14", "f0001_14", "f0009_01")  # new ones in the end
    assert data.test.groups is not None
    assert data.test.groups.tolist() == [2, 1]


@pytest.mark.parametrize("hub", [True, False])
def test_office_home_has_a_client_a_domain(
    tmp_path: Path, write_parquet: Writer, fake_hub: Hub, hub: bool
) -> None:
    """The schema of flwrlabs/office-home: pictures of all sizes, no test split."""
    names = ["Product", "Art", "Real World", "Clipart"]
    path = write_parquet(
        tmp_path / "office-home" / "train.parquet",
        [png(i, size=(20 + i, 30), mode="RGB" if i % 3 else "L") for i in range(24)],
        [i % 2 for i in range(24)],
        ["Alarm_Clock", "Backpack"],
        domain=pa.array([names[i % 4] for i in range(24)]),
    )
    fake_hub["flwrlabs/office-home", None] = {"train": Stored(path)}
    data = load(DataSettings(name="office-home", dir=None if hub else str(tmp_path)))
    assert data.shape == (3, 64, 64)
    assert data.group_names == ("Art", "Clipart", "Product", "Real World")
    assert data.test.groups is not None
    assert sorted(data.test.groups.tolist()) == [0, 1, 2, 3]
    few = load(
        DataSettings(
            name="office-home", dir=None if hub else str(tmp_path), domains=("Clipart", "Art")
        )
    )
    assert few.group_names == ("Art", "Clipart")
    assert (len(few.train), len(few.test)) == (10, 2)
    assert few.train.groups is not None
    assert few.train.groups.unique().tolist() == [0, 1]
    assert few.fingerprint != data.fingerprint
    again = load(DataSettings(name="office-home", dir=str(tmp_path)))  # mapped from the cache
    assert again.test.groups is not None
    assert torch.equal(again.test.groups, data.test.groups)


FIVE = {
    "mnist": ("ylecun/mnist", None, (28, 28), "L"),
    "mnist-m": ("Mike0307/MNIST-M", None, (28, 28), "RGB"),
    "svhn": ("ufldl-stanford/svhn", "cropped_digits", (32, 32), "RGB"),
    "synthetic": (None, None, (32, 32), "RGB"),
    "usps": ("flwrlabs/usps", None, (16, 16), "L"),
}


@pytest.fixture
def digit_five(tmp_path: Path, write_parquet: Writer, fake_hub: Hub) -> Path:
    """Four domains on the hub, as they are there, and the fifth in a folder."""
    for number, (domain, (hub, subset, size, mode)) in enumerate(FIVE.items()):
        folder = tmp_path / ("digit-five" if hub is None else "hub") / domain
        for split, count in (("train", 3), ("test", 2)):
            images = [png(10 * number + i, size=size, mode=mode) for i in range(count)]
            labels = [9, *range(count - 1)]
            names = None if domain == "mnist-m" else list("0123456789")
            write_parquet(folder / f"{split}.parquet", images, labels, names)
        if hub is not None:
            stored = {split: Stored(folder / f"{split}.parquet") for split in ("train", "test")}
            fake_hub[hub, subset] = stored
    return tmp_path


def test_digit_five_comes_from_five_places(digit_five: Path) -> None:
    data = load(DataSettings(name="digit-five", dir=str(digit_five)))
    assert (data.shape, data.classes) == ((3, 32, 32), 10)
    assert data.group_names == tuple(FIVE)
    assert data.train.groups is not None
    assert data.test.groups is not None
    assert data.train.groups.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    assert data.test.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert data.train.labels.tolist() == [9, 0, 1] * 5
    assert data.train.inputs[6, :, 0, 0].tolist() == [20, 21, 22]  # SVHN's first, as it was
    grey = data.train.inputs[0]
    assert torch.equal(grey[0], grey[2])


def test_digit_five_says_what_is_missing(digit_five: Path, fake_hub: Hub) -> None:
    message = refused(DataSettings(name="digit-five"))
    assert "'synthetic' is not on the hub" in message
    assert "DIR/digit-five/synthetic/train.parquet" in message
    assert """--set 'data.domains=["mnist", "mnist-m", "svhn", "usps"]'""" in message
    four = load(DataSettings(name="digit-five", domains=("usps", "mnist", "mnist-m", "svhn")))
    assert four.group_names == ("mnist", "mnist-m", "svhn", "usps")
    fake_hub.clear()
    message = refused(DataSettings(name="digit-five", domains=("usps",)))
    assert "--data digit-five --data-dir DIR, with DIR/digit-five/usps/train.parquet" in message
    assert "did you mean 'usps'" in refused(DataSettings(name="digit-five", domains=("usp",)))
    assert "data.domains is empty" in refused(DataSettings(name="digit-five", domains=()))


def test_digit_five_as_one_pair_of_tables(tmp_path: Path, write_parquet: Writer) -> None:
    for split in ("train", "test"):
        write_parquet(
            tmp_path / "digit-five" / f"{split}.parquet",
            [png(0), png(1, size=(9, 9), mode="RGB")],
            [0, 1],
            domain=pa.array(["usps", "mnist"]),
        )
    data = load(DataSettings(name="digit-five", dir=str(tmp_path)))
    assert (data.shape, data.group_names) == ((3, 32, 32), ("mnist", "usps"))
    assert data.test.groups is not None
    assert data.test.groups.tolist() == [1, 0]


def test_domains_of_data_without_owners(small_set: Path) -> None:
    message = refused(DataSettings(name=str(small_set), domains=("here",)))
    assert "data.client_column" in message
