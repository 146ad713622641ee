"""Parquet files: what is read, and what each kind of damage says."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from fedstill.data import DataSettings, load
from fedstill.errors import RequestError

from .conftest import Writer, png


def load_folder(folder: Path, **settings: object) -> object:
    return load(DataSettings(name=str(folder), **settings))  # type: ignore[arg-type]


def refused(folder: Path, **settings: object) -> str:
    with pytest.raises(RequestError) as caught:
        load_folder(folder, **settings)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_records_come_out_as_they_went_in(small_set: Path) -> None:
    data = load(DataSettings(name=str(small_set)))
    assert data.name == "small"
    assert data.train.inputs.shape == (12, 1, 4, 4)
    assert data.train.inputs.dtype == torch.uint8
    assert data.train.inputs.is_contiguous()
    expected = (np.arange(16) + 5) % 256
    assert np.array_equal(data.train.inputs[5].flatten().numpy(), expected)
    assert data.train.labels.tolist() == [i % 3 for i in range(12)]
    assert data.test.inputs[0, 0, 0, 0] == 100
    assert data.class_names == ("cat", "dog", "eel")
    assert data.scaling.mean == (0.5,)
    assert len(data.fingerprint) == 64


def test_a_data_dir_holds_data_sets_by_name(small_set: Path) -> None:
    data = load(DataSettings(name="small", dir=str(small_set.parent)))
    assert (data.name, len(data.train)) == ("small", 12)


def test_a_known_name_in_a_data_dir_gets_its_public_constants(
    tmp_path: Path, write_parquet: Writer
) -> None:
    for split in ("train", "test"):
        write_parquet(tmp_path / "mnist" / f"{split}.parquet", [png(1), png(2)], [0, 1])
    data = load(DataSettings(name="mnist", dir=str(tmp_path)))
    assert data.scaling.mean == (0.1307,)


def test_a_known_name_with_other_channels_asks_for_constants(
    tmp_path: Path, write_parquet: Writer
) -> None:
    for split in ("train", "test"):
        write_parquet(tmp_path / "mnist" / f"{split}.parquet", [png(1, mode="RGB")], [0])
    with pytest.raises(RequestError, match=r"3 channels.*data\.mean"):
        load(DataSettings(name="mnist", dir=str(tmp_path)))


@pytest.mark.parametrize("below", ["", "data"])
def test_shards_are_read_in_order(tmp_path: Path, write_parquet: Writer, below: str) -> None:
    folder = tmp_path / "set"
    for shard in range(3):
        images = [png(10 * shard), png(10 * shard + 1)]
        write_parquet(folder / below / f"train-0000{shard}-of-00003.parquet", images, [0, 1])
    write_parquet(folder / below / "test-00000-of-00001.parquet", [png(7)], [1])
    data = load(DataSettings(name=str(folder)))
    assert data.train.inputs[:, 0, 0, 0].tolist() == [0, 1, 10, 11, 20, 21]
    assert data.class_names == ("0", "1")


def test_a_bad_image_in_a_later_shard_is_named_by_its_own_row(
    tmp_path: Path, write_parquet: Writer
) -> None:
    write_parquet(tmp_path / "s" / "train-0.parquet", [png(0)] * 3, [0, 1, 0])
    write_parquet(tmp_path / "s" / "train-1.parquet", [png(0), b"rubbish"], [0, 1])
    write_parquet(tmp_path / "s" / "test.parquet", [png(0)], [0])
    message = refused(tmp_path / "s")
    assert "train-1.parquet, row 1 " in message
    assert "cannot be decoded" in message


def test_colour_images_keep_their_channels(tmp_path: Path, write_parquet: Writer) -> None:
    images = [png(0, mode="RGB"), png(9)]  # a grey one among them is converted alike
    for split in ("train", "test"):
        write_parquet(tmp_path / "c" / f"{split}.parquet", images, [0, 1], image_column="img")
    data = load(DataSettings(name=str(tmp_path / "c")))
    assert data.shape == (3, 4, 4)
    assert data.train.inputs[0, :, 0, 0].tolist() == [0, 1, 2]
    assert data.train.inputs[1, :, 0, 0].tolist() == [9, 9, 9]


def test_words_as_labels_become_classes(tmp_path: Path, write_parquet: Writer) -> None:
    write_parquet(tmp_path / "w" / "train.parquet", [png(0)] * 3, ["b", "a", "b"])
    write_parquet(tmp_path / "w" / "test.parquet", [png(0)], ["a"])
    data = load(DataSettings(name=str(tmp_path / "w")))
    assert data.class_names == ("a", "b")
    assert data.train.labels.tolist() == [1, 0, 1]
    write_parquet(tmp_path / "w" / "test.parquet", [png(0)], ["z"])
    assert "class 'z'" in refused(tmp_path / "w")


def test_the_client_column_names_natural_owners(tmp_path: Path, write_parquet: Writer) -> None:
    who = pa.array(["zoe", "ann", "zoe"])
    write_parquet(tmp_path / "n" / "train.parquet", [png(0)] * 3, [0, 1, 0], writer=who)
    write_parquet(tmp_path / "n" / "test.parquet", [png(0)], [0])
    data = load(DataSettings(name=str(tmp_path / "n"), client_column="writer"))
    assert data.group_names == ("ann", "zoe")
    assert data.train.groups is not None
    assert data.train.groups.tolist() == [1, 0, 1]
    assert "data.client_column" in refused(tmp_path / "n", client_column="speaker")


def test_numbered_owners_are_in_numeric_order(tmp_path: Path, write_parquet: Writer) -> None:
    who = pa.array([10, 9, 10])
    write_parquet(tmp_path / "n" / "train.parquet", [png(0)] * 3, [0, 1, 0], writer=who)
    write_parquet(tmp_path / "n" / "test.parquet", [png(0)], [0])
    data = load(DataSettings(name=str(tmp_path / "n"), client_column="writer"))
    assert data.group_names == ("9", "10")


def test_image_size_resizes_mixed_sizes(tmp_path: Path, write_parquet: Writer) -> None:
    images = [png(0), png(0, size=(6, 5))]
    for split in ("train", "test"):
        write_parquet(tmp_path / "m" / f"{split}.parquet", images, [0, 1])
    message = refused(tmp_path / "m")
    assert "row 1 " in message
    assert "6x5" in message
    assert "4x4" in message
    assert "data.image_size" in message
    data = load(DataSettings(name=str(tmp_path / "m"), image_size=8))
    assert data.shape == (1, 8, 8)


def test_images_large_enough_for_threads_decode_alike(
    tmp_path: Path, write_parquet: Writer
) -> None:
    images = [png(i, size=(64, 64)) for i in range(300)]
    write_parquet(tmp_path / "t" / "train.parquet", images, [0] * 300)
    write_parquet(tmp_path / "t" / "test.parquet", images[:1], [0])
    data = load(DataSettings(name=str(tmp_path / "t")))
    assert data.train.inputs[:, 0, 0, 0].tolist() == [i % 256 for i in range(300)]


def test_sixteen_bit_images_keep_their_upper_byte(tmp_path: Path, write_parquet: Writer) -> None:
    buffer = io.BytesIO()
    deep = np.array([[0, 256], [32768, 65535]], dtype=np.uint16)
    Image.fromarray(deep).save(buffer, format="PNG")
    for split in ("train", "test"):
        write_parquet(tmp_path / "d" / f"{split}.parquet", [buffer.getvalue()], [0])
    data = load(DataSettings(name=str(tmp_path / "d")))
    assert data.train.inputs.flatten().tolist() == [0, 1, 128, 255]


def test_missing_columns_are_listed(small_set: Path, write_parquet: Writer) -> None:
    message = refused(small_set, label_column="kind")
    assert "no column 'kind'" in message
    assert "image, label" in message
    assert "data.label_column" in message
    write_parquet(small_set / "train.parquet", [png(0)], [0], image_column="photo")
    message = refused(small_set)
    assert "column 'photo' holds struct" in message
    assert "data.image_column=photo" in message


@pytest.mark.parametrize(
    ("labels", "names", "said"),
    [
        ([0, -1], None, "label -1"),
        ([0, 5], ["a", "b"], "label 5 is out of range for 2 classes"),
        ([0, None], None, "empty (null)"),
        ([0, 10**9], None, "too large"),
        ([0.5, 1.0], None, "double"),
    ],
)
def test_bad_labels_are_named(
    tmp_path: Path,
    write_parquet: Writer,
    labels: list[object],
    names: list[str] | None,
    said: str,
) -> None:
    write_parquet(tmp_path / "b" / "train.parquet", [png(0)] * 2, labels, names)
    write_parquet(tmp_path / "b" / "test.parquet", [png(0)], [0], names)
    message = refused(tmp_path / "b")
    assert said in message
    assert "train.parquet" in message


def test_a_test_label_beyond_the_training_classes(tmp_path: Path, write_parquet: Writer) -> None:
    write_parquet(tmp_path / "b" / "train.parquet", [png(0)] * 2, [0, 1])
    write_parquet(tmp_path / "b" / "test.parquet", [png(0)], [2])
    message = refused(tmp_path / "b")
    assert "test.parquet, row 0" in message
    assert "2 classes" in message


def test_splits_with_other_class_names(small_set: Path, write_parquet: Writer) -> None:
    write_parquet(small_set / "test.parquet", [png(0)], [0], ["cat", "cow", "eel"])
    assert "class 1 is 'cow', not 'dog'" in refused(small_set)
    write_parquet(small_set / "test.parquet", [png(0)], [0], ["cat", "cow"])
    assert "2 classes, not 3" in refused(small_set)


def test_a_cut_image_is_named(small_set: Path, write_parquet: Writer) -> None:
    path, names = small_set / "train.parquet", ["cat", "dog", "eel"]
    write_parquet(path, [png(0), png(1)[:50]], [0, 1], names)
    assert "row 1 " in refused(small_set)
    write_parquet(path, [png(0), None], [0, 1], names)
    assert "no image bytes" in refused(small_set)
    write_parquet(path, [b"rubbish", png(0)], [0, 1], names)
    assert "row 0 " in refused(small_set)


def test_a_column_of_numbers_is_no_image(small_set: Path) -> None:
    assert "not encoded images" in refused(small_set, image_column="label")


def test_files_that_are_not_parquet_or_empty(small_set: Path, write_parquet: Writer) -> None:
    empty = pa.table({"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())})
    pq.write_table(empty, small_set / "train.parquet")
    assert "no records" in refused(small_set)
    (small_set / "train.parquet").write_bytes(b"not parquet at all")
    assert "not a readable parquet file" in refused(small_set)


def test_damage_inside_a_parquet_file_is_explained(small_set: Path) -> None:
    path = small_set / "train.parquet"
    raw = bytearray(path.read_bytes())
    raw[4:200] = b"\xff" * 196
    path.write_bytes(raw)
    assert "train.parquet" in refused(small_set)
