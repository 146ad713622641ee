"""Files that were made to do harm: each gives one clear line, and takes bounded memory."""

import gc
import io
import json
import os
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedstill.data import DataSettings, load, load_node_data
from fedstill.data.images import ImageForm
from fedstill.data.limits import most_bytes
from fedstill.errors import RequestError
from tests.data.conftest import Writer, png

MEGABYTE = 2**20


@contextmanager
def within(most: int) -> Iterator[None]:
    """Fail if NumPy and Python together hold more than this at any moment."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most, f"{peak:,} bytes"


def refused(name: Path, **more: Any) -> str:
    with pytest.raises(RequestError) as caught:
        load(DataSettings(name=str(name), **more))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def npy(header: str, body: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode()
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + body


def npz(path: Path, compression: int = zipfile.ZIP_DEFLATED, **members: bytes) -> Path:
    good = io.BytesIO()
    np.savez(good, x_train=np.zeros((4, 2, 2), np.uint8), y_train=np.arange(4) % 2)
    with zipfile.ZipFile(good) as archive:
        found = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
    found |= {"x_test": found["x_train"], "y_test": found["y_train"]} | members
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in found.items():
            archive.writestr(f"{name}.npy", data)
    return path


def test_the_file_that_the_others_are_made_from_is_good(tmp_path: Path) -> None:
    assert len(load(DataSettings(name=str(npz(tmp_path / "good.npz")))).train) == 4


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000, 4, 4)}", "claims"),
        ("{'descr': '|u1', 'fortran_order': False, 'shape': (9" + "9" * 5000 + ",)}", "npz"),
        ("{'descr': '<U100000000', 'fortran_order': False, 'shape': (9,)}", "claims"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (4,)}", "Python objects"),
        ("{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (4,)}", "Python objects"),
        ("{'descr': '|u1', 'fortran_order': False, 'shape': (-4, 2, 2)}", "npz"),
        ("{'descr': '|u1', 'fortran_order': False, 'shape': 4}", "npz"),
        ("{'descr': 'nonsense', 'fortran_order': False, 'shape': (4,)}", "npz"),
        ("(" * 3000, "npz"),
        ("__import__('os').system('false')", "npz"),
        ("", "npz"),
    ],
)
def test_the_header_of_an_array_is_not_believed(tmp_path: Path, header: str, reason: str) -> None:
    path = npz(tmp_path / "lie.npz", x_train=npy(header, b"12345678"))
    with within(8 * MEGABYTE):
        assert reason in refused(path)
        with pytest.raises(RequestError, match=r"npz|claims|objects"):
            load_node_data(path, DataSettings(), (1, 2, 2), ("a", "b"))


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_a_zip_bomb_is_not_unpacked(tmp_path: Path, compression: int) -> None:
    zeros = npy("{'descr': '|u1', 'fortran_order': False, 'shape': (3000, 320, 320)}")
    path = npz(tmp_path / "bomb.npz", compression, x_train=zeros + bytes(3000 * 320 * 320))
    assert path.stat().st_size < MEGABYTE
    with within(8 * MEGABYTE):
        assert "do not compress so far" in refused(path)


def test_a_small_file_may_hold_little_however_well_it_compresses() -> None:
    assert most_bytes(1) == most_bytes(MEGABYTE) == 2**28
    assert most_bytes(10 * MEGABYTE) == 2000 * MEGABYTE


def test_a_zip_member_that_is_longer_than_it_says(tmp_path: Path) -> None:
    path = npz(tmp_path / "lie.npz", zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    place = data.rindex(b"PK\x01\x02", 0, data.index(b"y_train", data.index(b"PK\x01\x02")))
    data[place + 24 : place + 28] = struct.pack("<I", 10)  # its size, in the directory
    path.write_bytes(data)
    assert "npz" in refused(path)


@pytest.mark.parametrize("cut", [10, 100, 300, 500])
def test_a_cut_archive(tmp_path: Path, cut: int) -> None:
    path = npz(tmp_path / "cut.npz")
    path.write_bytes(path.read_bytes()[:cut])
    assert "not a readable .npz" in refused(path)


def png_of(width: int, height: int) -> bytes:
    """A PNG that claims a size, with hardly any pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + crc

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(100))
    body = chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ((9000, 9000), "at most 67,108,864"),
        ((2**31 - 1, 2**31 - 1), "cannot be decoded"),
        ((8000, 8000), "cannot be decoded"),  # allowed, but it is not there
        ((0, 5), "cannot be decoded"),
    ],
)
def test_the_size_of_an_image_is_not_believed(
    tmp_path: Path, size: tuple[int, int], reason: str
) -> None:
    folder = tmp_path / "images" / "cat"
    folder.mkdir(parents=True)
    for i in range(500):
        (folder / f"{i:03d}.png").write_bytes(png_of(*size))
    refused(folder.parent)  # what the first call imports is not the images' memory
    gc.collect()
    with within(8 * MEGABYTE):
        assert reason in refused(folder.parent)
        refused(folder.parent, image_size=4)


def test_images_that_do_not_fit_into_memory() -> None:
    with pytest.raises(RequestError, match=r"need .* GiB and this machine has"):
        ImageForm(3, 8192, 8192, resize=True).empty(10**9)
    with pytest.raises(RequestError, match="at most 8,192"):
        load(DataSettings(name="digits", image_size=10**9))


def test_the_contents_choose_among_image_formats_only(tmp_path: Path) -> None:
    """PostScript would be given to another program."""
    folder = tmp_path / "images" / "cat"
    folder.mkdir(parents=True)
    script = io.BytesIO()
    Image.new("L", (4, 4)).save(script, format="EPS")
    for i in range(5):
        (folder / f"{i}.png").write_bytes(script.getvalue())
    assert "cannot identify image file" in refused(folder.parent)


def test_a_pipe_among_the_images_does_not_block(tmp_path: Path) -> None:
    folder = tmp_path / "images" / "cat"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "0.png")
    for i in range(1, 6):
        (folder / f"{i}.png").write_bytes(png())
    assert "not a regular file" in refused(folder.parent)


def hub_metadata(entry: str) -> dict[str, str]:
    return {"huggingface": entry}


def parquet(folder: Path, table: pa.Table, **more: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        pq.write_table(table, folder / f"{split}.parquet", **more)
    return folder


def images(count: int) -> pa.Array:
    return pa.array([png(i) for i in range(count)], pa.binary())


def test_labels_in_odd_columns(tmp_path: Path) -> None:
    nested = pa.array([[0], [1]], pa.list_(pa.int64()))
    structs = pa.array([{"a": 1}, {"a": 2}])
    broken = pa.array([b"ok", b"\xff\xfe"]).view(pa.string())
    cases = {
        "lists": (nested, "neither numbers nor words"),
        "structs": (structs, "neither numbers nor words"),
        "floats": (pa.array([0.5, 1.0]), "neither numbers nor words"),
        "nothing": (pa.nulls(2), "is empty (null)"),
        "half": (pa.array([0, None], pa.int64()), "is empty (null)"),
        "huge": (pa.array([2**63, 2**64 - 1], pa.uint64()), "out of range"),
        "bytes": (broken, "not UTF-8"),
        "long": (pa.array(["a", "b" * 100_000]), "too long for a name"),
        "escapes": (pa.array(["a", "\x1b]0;owned\x07"]), "not a readable name"),
        "dictionary": (pa.array(["a", None]).dictionary_encode(), "is empty (null)"),
    }
    for name, (labels, reason) in cases.items():
        folder = parquet(tmp_path / name, pa.table({"image": images(2), "label": labels}))
        assert reason in refused(folder), name


def test_images_in_odd_columns(tmp_path: Path) -> None:
    labels = pa.array([0, 1])
    cases = {
        "numbers": (pa.array([1, 2]), "not encoded images"),
        "texts": (pa.array(["a", "b"]), "No such file"),  # paths
        "structs": (pa.array([{"path": "x"}, {"path": "y"}]), "not encoded images"),
        "nested": (pa.array([{"bytes": {"bytes": b"x"}}] * 2), "not encoded images"),
        "nothing": (pa.nulls(2), "not encoded images"),
        "missing": (pa.array([png(), None], pa.binary()), "no image bytes"),
        "empty": (pa.array([b"", b""], pa.binary()), "cannot identify"),
    }
    for name, (column, reason) in cases.items():
        folder = parquet(tmp_path / name, pa.table({"image": column, "label": labels}))
        assert reason in refused(folder), name


def test_tables_without_rows_or_columns(tmp_path: Path) -> None:
    empty = pa.table({"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())})
    assert "holds no records" in refused(parquet(tmp_path / "empty", empty))
    assert "no column" in refused(parquet(tmp_path / "other", pa.table({"a": [1, 2]})))


@pytest.mark.parametrize(
    "entry",
    [
        "[" * 100_000,
        '{"info": {"features": {"label": {"names": ' + "9" * 5000 + "}}}}",
        '{"info": {"features": {"label": {"names": "abc"}}}}',
        '{"info": {"features": {"label": {"names": null}}}}',
        "[]",
        "not json",
    ],
)
def test_odd_metadata_name_no_classes(tmp_path: Path, entry: str) -> None:
    table = pa.table({"image": images(2), "label": [0, 1]})
    folder = parquet(tmp_path / "set", table.replace_schema_metadata(hub_metadata(entry)))
    assert load(DataSettings(name=str(folder))).class_names == ("0", "1")


def test_class_names_of_the_metadata_are_checked(tmp_path: Path) -> None:
    table = pa.table({"image": images(2), "label": [0, 1]})
    for names, reason in (
        (["a", "\x1b[2J"], "not a readable name"),
        (list(map(str, range(100_001))), "at most 100,000"),
    ):
        entry = json.dumps({"info": {"features": {"label": {"names": names}}}})
        folder = parquet(tmp_path / "set", table.replace_schema_metadata(hub_metadata(entry)))
        assert reason in refused(folder)


def test_texts_in_odd_columns(tmp_path: Path) -> None:
    cases = {
        "lists": (pa.array([["a"], ["b"]]), "neither a text nor a number"),
        "bytes": (pa.array([b"ok", b"\xff\xfe"]).view(pa.string()), "not UTF-8"),
        "nothing": (pa.nulls(2), "is empty (null)"),
    }
    for name, (column, reason) in cases.items():
        table = pa.table({"text": column, "who": ["a", "b"]})
        folder = parquet(tmp_path / name, table)
        assert reason in refused(folder, text_column="text", client_column="who"), name
    escapes = pa.table({"text": ["abcdefgh" * 9] * 2, "who": ["a", "\x1b[2J"]})
    more: dict[str, Any] = {"text_column": "text", "client_column": "who", "sequence_length": 5}
    assert "not a readable name" in refused(parquet(tmp_path / "who", escapes), **more)
    assert "at most 1,000,000" in refused(
        tmp_path / "who", text_column="text", sequence_length=10**9
    )


def test_damaged_parquet_files(tmp_path: Path, write_parquet: Writer) -> None:
    folder = tmp_path / "set"
    whole = write_parquet(folder / "train.parquet", [png(i) for i in range(9)], list(range(9)))
    data = whole.read_bytes()
    (folder / "test.parquet").write_bytes(data)
    for cut in (0, 4, 12, len(data) // 2, len(data) - 1):
        whole.write_bytes(data[:cut])
        refused(folder)
    whole.write_bytes(data.replace(b"PAR1", b"PARE"))
    refused(folder)


_BOMB = """
import resource, sys
import pyarrow as pa, pyarrow.parquet as pq
from fedstill.cli import main
sys.argv = ["fedstill", "partition", "--data", sys.argv[1], "--clients", "1"]
resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))
main()
"""


@pytest.mark.slow
def test_a_dictionary_that_explodes(tmp_path: Path) -> None:
    """One image of a megabyte, written once and named by 20,000 rows: 20 GB."""
    value = bytes(MEGABYTE)
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), [value])
    table = pa.table({"image": column, "label": [0, 1] * 10_000})
    folder = parquet(tmp_path / "bomb", table, store_schema=False, compression="zstd")
    assert (folder / "train.parquet").stat().st_size < MEGABYTE
    done = subprocess.run(
        [sys.executable, "-c", _BOMB, str(folder)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert "fedstill: " in done.stderr


def test_a_label_that_is_no_text_does_not_count_where_privacy_is_on(tmp_path: Path) -> None:
    """An error would tell that the record is there."""
    labels = pa.array([b"a", b"\xff\xfe", b"b"]).view(pa.string())
    folder = parquet(tmp_path / "set", pa.table({"image": images(3), "label": labels}))
    with pytest.warns(UserWarning, match="1 of 3 records do not fit"):
        split = load_node_data(folder, DataSettings(), (1, 4, 4), ("a", "b"), tolerant=True)
    assert split.labels.tolist() == [0, 1]
