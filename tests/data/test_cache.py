"""The cache: hit, damage, change of source, and a folder that cannot be written."""

import os
import warnings
from pathlib import Path

import pytest
import torch

from fedstill.data import DataSettings, cache_folder, columns, load

from .conftest import Writer, png


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever parquet files are really decoded."""
    calls: list[int] = []
    decode = columns.decode_tables

    def counted(*arguments: object) -> object:
        calls.append(1)
        return decode(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(columns, "decode_tables", counted)
    return calls


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_the_second_time_nothing_is_decoded(
    small_set: Path, own_cache: Path, decodings: list[int]
) -> None:
    first = load(DataSettings(name=str(small_set)))
    second = load(DataSettings(name=str(small_set)))
    assert len(decodings) == 1
    assert first.fingerprint == second.fingerprint
    assert torch.equal(first.train.inputs, second.train.inputs)
    assert second.train.inputs.is_contiguous()
    assert second.class_names == ("cat", "dog", "eel")
    assert only_file(own_cache).name.startswith("small-")


def test_owners_survive_the_cache(tmp_path: Path, write_parquet: Writer) -> None:
    for split in ("train", "test"):
        write_parquet(tmp_path / "n" / f"{split}.parquet", [png(0)] * 2, [0, 1], who=["b", "a"])
    settings = DataSettings(name=str(tmp_path / "n"), client_column="who")
    first, second = load(settings), load(settings)
    assert second.group_names == first.group_names == ("a", "b")
    assert second.train.groups is not None
    assert second.train.groups.tolist() == [1, 0]


def test_other_settings_or_another_source_decode_anew(
    small_set: Path, decodings: list[int], write_parquet: Writer
) -> None:
    first = load(DataSettings(name=str(small_set)))
    assert load(DataSettings(name=str(small_set), image_size=6)).shape == (1, 6, 6)
    assert len(decodings) == 2
    train = small_set / "train.parquet"
    os.utime(train, ns=(1, 1))  # changed, though of the same size
    load(DataSettings(name=str(small_set)))
    assert len(decodings) == 3
    write_parquet(train, [png(0)], [0], ["cat", "dog", "eel"])
    assert load(DataSettings(name=str(small_set))).fingerprint != first.fingerprint


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "rubbish"])
def test_a_damaged_file_is_rebuilt(
    small_set: Path, own_cache: Path, decodings: list[int], damage: str
) -> None:
    expected = load(DataSettings(name=str(small_set))).fingerprint
    path = only_file(own_cache)
    raw = path.read_bytes()
    flipped = bytearray(raw)
    flipped[-3] ^= 1
    path.unlink()  # a new file, as after a restored backup: the old one is still mapped
    contents = {"cut": raw[:-20], "flip": bytes(flipped), "empty": b"", "rubbish": b"\xff" * 99}
    path.write_bytes(contents[damage])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(DataSettings(name=str(small_set))).fingerprint == expected
    assert len(decodings) == 2
    assert path.read_bytes() == raw
    load(DataSettings(name=str(small_set)))
    assert len(decodings) == 2


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, small_set: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="FEDSTILL_CACHE"):
        data = load(DataSettings(name=str(small_set)), cache_dir=tmp_path / "file" / "cache")
    assert len(data.train) == 12


def test_nothing_is_left_when_writing_fails(
    small_set: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save", full)
    with pytest.warns(UserWarning, match="No space left"):
        load(DataSettings(name=str(small_set)))
    assert list(own_cache.iterdir()) == []


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDSTILL_CACHE", "/chosen")
    assert cache_folder() == Path("/chosen")
    monkeypatch.delenv("FEDSTILL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    assert cache_folder() == Path("/shared/fedstill")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "fedstill"


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")
def test_records_are_mapped_and_writing_to_them_never_reaches_the_file(
    small_set: Path, own_cache: Path
) -> None:
    data = load(DataSettings(name=str(small_set)))  # the first load already maps the new file
    assert str(only_file(own_cache)) in Path("/proc/self/maps").read_text()
    raw = only_file(own_cache).read_bytes()
    data.train.inputs.zero_()
    assert only_file(own_cache).read_bytes() == raw
