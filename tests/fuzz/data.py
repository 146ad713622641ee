"""Data files: arrays, CSV files, parquet tables, images, texts, vocabularies."""

import io
import json
import struct
import zipfile
import zlib
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from fedstill.data import Dataset, DataSettings, load, load_node_data
from fedstill.data.column import Column
from fedstill.data.columns import Columns, decode_tables, text_tables
from fedstill.data.decoded import Decoded
from fedstill.data.images import ImageForm, decode_images
from fedstill.data.rows import parquet_table
from fedstill.data.tolerant import from_parquet
from fedstill.data.vocabulary import find_vocabulary
from tests.fuzz.mutate import mutated_bytes, mutated_json, mutated_text
from tests.fuzz.target import Check, Make, Target


def _sound(data: Dataset | Decoded) -> None:
    """Records that training can take: finite, each with a label of the task."""
    for split in (data.train, data.test):
        assert len(split.inputs) == len(split.labels) > 0
        assert split.inputs.shape[1:] == data.train.inputs.shape[1:]
        assert int(split.labels.max()) < len(data.class_names)
        assert int(split.labels.min()) >= (0 if split.labels.dim() == 1 else -100)
        assert not split.inputs.is_floating_point() or torch.isfinite(split.inputs).all()


def _arrays(rng: Random) -> dict[str, Any]:
    """Arrays of sizes and types that fit, or nearly."""
    shape = rng.choice(((4, 2, 2), (4, 1, 2, 2), (4, 2, 2, 3), (4, 3), (0, 2), (4,), ()))
    kind = rng.choice(("u1", "u1", "f4", "f8", "i8", "?", "c8", "U3", "M8[s]", "f2", "S2"))
    x = np.zeros(shape, kind)
    if kind in ("f4", "f8") and x.size and rng.random() < 0.3:
        x.flat[0] = rng.choice((np.nan, np.inf, 1e30))
    y = np.arange(4) % rng.choice((2, 3, 10**6)) - rng.choice((0, 0, 1))
    y = y.astype(rng.choice(("i8", "i8", "u1", "f4", "?", "U2", "u8")))
    return {"x_train": x, "y_train": y, "x_test": x, "y_test": y}


def npz(folder: Path) -> tuple[Make, Check]:
    """An .npz archive: the archive, the headers of its arrays, or the arrays changed."""
    path = folder / "set.npz"
    x, y = np.arange(16, dtype=np.uint8).reshape(4, 2, 2), np.arange(4) % 2
    whole: dict[str, Any] = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    stream = io.BytesIO()
    np.savez(stream, **whole)
    stored = stream.getvalue()
    with zipfile.ZipFile(io.BytesIO(stored)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}

    def make(rng: Random) -> bytes:
        kind = rng.random()
        if kind < 0.4:
            return mutated_bytes(stored, rng, [stored])
        out = io.BytesIO()
        if kind < 0.6:
            np.savez(out, **_arrays(rng))
            return out.getvalue()
        changed = dict(members)
        name = rng.choice(sorted(members))
        head, body = members[name][10:128], members[name][128:]
        text = mutated_text(head.decode("latin1").rstrip(), rng)
        if rng.random() < 0.5:
            lie = rng.choice(("99999999", "-1", "4.5", "9" * 5000, "(4,)", "None", "True"))
            text = head.decode("latin1").replace("4", lie, 1)
        if rng.random() < 0.1:
            text = "(" * rng.choice((50, 500, 9000))
        encoded = text.encode("latin1", "replace")
        changed[name] = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(encoded)) + encoded + body
        how = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
        with zipfile.ZipFile(out, "w") as archive:
            for member, data in changed.items():  # (ZipInfo: without the time of day)
                archive.writestr(zipfile.ZipInfo(member), data, how)
        return out.getvalue()

    def check(case: bytes) -> None:
        path.write_bytes(case)
        if len(case) % 4 == 0:
            tolerant = len(case) % 8 == 0
            task = (1, 2, 2), ("0", "1")
            split = load_node_data(path, DataSettings(), *task, tolerant=tolerant)
            assert split.inputs.shape[1:] == (1, 2, 2)
            assert set(split.labels.tolist()) <= {0, 1}
            return
        owners = "y_train" if len(case) % 2 else None
        _sound(load(DataSettings(name=str(path), client_column=owners)))

    return make, check


def _png(value: int, form: str = "PNG", mode: str = "L") -> bytes:
    pixels = (np.arange(48 if mode == "RGB" else 16) + value).astype(np.uint8)
    shape = (4, 4, 3) if mode == "RGB" else (4, 4)
    out = io.BytesIO()
    Image.fromarray(pixels.reshape(shape)).save(out, format=form)
    return out.getvalue()


def _tables() -> list[pa.Table]:
    images = [_png(i) for i in range(6)]
    structs = pa.array([{"bytes": image, "path": None} for image in images])
    features = {"label": {"names": ["a", "b", "c"], "_type": "ClassLabel"}}
    entry = json.dumps({"info": {"features": features}})
    words = pa.array(["x", "y", "z"] * 2)
    return [
        pa.table({"image": structs, "label": [0, 1, 2] * 2}).replace_schema_metadata(
            {"huggingface": entry}
        ),
        pa.table({"img": pa.array(images), "labels": words.dictionary_encode(), "who": words}),
        pa.table({"image": pa.array(images, pa.large_binary()), "label": [[1]] * 6}),
        pa.table({"a": [0.5, None, 2.0] * 2, "b": words, "label": [0, 1, 2] * 2, "who": words}),
        pa.table({"text": ["to be or not " * 4] * 6, "who": words}),
        pa.table({"text": pa.array([None] * 6, pa.string()), "who": pa.nulls(6)}),
    ]


def parquet(folder: Path) -> tuple[Make, Check]:
    """A parquet file, mostly its description at the end; or other metadata about the classes."""
    pa.set_cpu_count(1)
    path = folder / "train.parquet"
    tables = _tables()
    datas = []
    for table in tables:
        for compression in ("snappy", "zstd", "none"):
            out = io.BytesIO()
            pq.write_table(table, out, compression=compression)
            datas.append(out.getvalue())

    def make(rng: Random) -> tuple[bytes, bool]:
        text = rng.random() < 0.3
        if rng.random() < 0.1:
            entry = tables[0].schema.metadata[b"huggingface"].decode()
            named = {"huggingface": mutated_json(entry, rng).encode("utf-8", "replace")}
            out = io.BytesIO()
            pq.write_table(tables[0].replace_schema_metadata(named), out)
            return out.getvalue(), text
        data = rng.choice(datas)
        if rng.random() < 0.3:
            return mutated_bytes(data, rng, [rng.choice(datas)]), text
        size = int.from_bytes(data[-8:-4], "little")
        body, footer = data[: -8 - size], data[-8 - size : -8]
        footer = mutated_bytes(footer, rng)
        if rng.random() < 0.3:
            body = mutated_bytes(body, rng)
        return body + footer + struct.pack("<I", len(footer)) + b"PAR1", text

    def check(case: tuple[bytes, bool]) -> None:
        data, text = case
        path.write_bytes(data)
        table = [parquet_table(path)]
        if len(data) % 4 == 0:
            split = from_parquet([path], DataSettings(), (1, 4, 4), ("a", "b", "x", "y"))
            assert split.inputs.shape[1:] == (1, 4, 4)
            assert set(split.labels.tolist()) <= {0, 1, 2, 3}
        elif text:
            texts, _ = text_tables(table, table, Columns(client="who"))
            assert all(isinstance(t, str) for pair in texts.items() for t in pair)
        else:
            _sound(decode_tables(table, table, Columns(owners=("who",)[: len(data) % 2]), None))

    return make, check


def _chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    found, place = [], 8
    while place < len(data):
        size = int.from_bytes(data[place : place + 4], "big")
        found.append((data[place + 4 : place + 8], data[place + 8 : place + 8 + size]))
        place += 12 + size
    return found


def images(_: Path) -> tuple[Make, Check]:
    """Encoded images of all formats; of a PNG the chunks, with checksums that are right again."""
    forms = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
    datas = [_png(i, form, mode) for i, form in enumerate(forms) for mode in ("L", "RGB")]
    png = _png(1, mode="RGB")

    def make(rng: Random) -> bytes:
        if rng.random() < 0.6:
            return mutated_bytes(rng.choice(datas), rng, datas)
        chunks = _chunks(png)
        place = rng.randrange(len(chunks))
        kind, body = chunks[place]
        if kind == b"IDAT" and rng.random() < 0.5:
            body = zlib.compress(mutated_bytes(zlib.decompress(body), rng))
        elif kind == b"IHDR" and rng.random() < 0.5:
            size = struct.pack(">II", rng.choice((0, 4, 9000, 2**31)), rng.choice((1, 4, 70_000)))
            body = size + body[8:]
        else:
            body = mutated_bytes(body, rng)
        chunks[place] = kind, body
        parts = (
            struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b))
            for k, b in chunks
        )
        return png[:8] + b"".join(parts)

    def check(case: bytes) -> None:
        for size in (None, 3):
            form = ImageForm.of_first(case, size, "case")
            out = form.empty(1)
            decode_images([case], form, out, lambda _: "case")
            assert out.dtype == np.uint8

    return make, check


def texts(folder: Path) -> tuple[Make, Check]:
    """A plain text with speakers, and a file of words."""
    play, words = folder / "play.txt", folder / "words.txt"
    speech = "ANN:\nthe cat sees a cow. " * 9 + "\n\nBEN:\nthe sun and the moon, the sea.\n" * 9
    listed = "the\ncat\nsun\nmoon\nsea\nisn't\n42\n"

    def make(rng: Random) -> tuple[bytes, bytes]:
        changed = mutated_text(speech, rng).encode("utf-8", "replace")
        if rng.random() < 0.3:
            changed = mutated_bytes(speech.encode(), rng)
        other = listed.encode()
        if rng.random() < 0.5:
            other = mutated_bytes(other, rng)
        return changed, other

    def check(case: tuple[bytes, bytes]) -> None:
        play.write_bytes(case[0])
        words.write_bytes(case[1])
        vocabulary = find_vocabulary(str(words)) if case[0][-1:] > b"t" else None
        name = str(words) if vocabulary else None
        _sound(load(DataSettings(name=str(play), vocabulary=name, sequence_length=6)))

    return make, check


_CELLS = (
    "", "?", "NA", "1", "-1", "1.5", "1e5", "1e999", "-inf", "nan", "0x10", "1,5", "+3", "007",
    "x", "x" * 2000, '"', '"a,b"', '"a\nb"', "\x00", "\x1b[2J", "\u202e", "\ufffd", "9" * 400,
    " 2 ", "true", "1979-05-27", "train", "test", "no", "yes", "maybe",
)  # fmt: skip


def csv_files(folder: Path) -> tuple[Make, Check]:
    """CSV files: bytes, cells, separators, rows of other lengths; read by a run and by a node."""
    path = folder / "table.csv"
    rows = [
        ["age", "sex", "sick", "part"],
        *[
            [str(20 + i), "fm"[i % 2], ("no", "yes")[i % 2], "test" if i > 7 else "train"]
            for i in range(10)
        ],
    ]
    columns = (Column("age", 20.0, 60.0, indicator=True), Column("sex", values=("f", "m")))

    def make(rng: Random) -> tuple[bytes, int]:
        cells = [list(row) for row in rows]
        for _ in range(rng.choice((0, 1, 1, 2, 5))):
            row = rng.choice(cells)
            kind = rng.random()
            if kind < 0.7:
                row[rng.randrange(len(row))] = rng.choice(_CELLS)
            elif kind < 0.8:
                row.append(rng.choice(_CELLS))
            elif kind < 0.9 and len(row) > 1:
                row.pop()
            else:
                cells.remove(row)
                cells = cells or [["age"]]
        separator = rng.choice((",", ",", ";", "\t", "|"))
        end = rng.choice(("\n", "\n", "\r\n", "\r"))
        data = end.join(separator.join(row) for row in cells).encode("utf-8", "surrogatepass")
        if rng.random() < 0.3:
            data = mutated_bytes(data, rng, [data])
        return data, rng.randrange(6)

    def check(case: tuple[bytes, int]) -> None:
        data, how = case
        path.write_bytes(data)
        named: dict[str, Any] = {"label_column": "sick", "split_column": "part"}
        if how < 2:
            split = load_node_data(
                path, DataSettings(**named), (4,), ("no", "yes"), columns, tolerant=how == 0
            )
            assert split.inputs.shape[1:] == (4,)
            assert torch.isfinite(split.inputs).all()
            assert set(split.labels.tolist()) <= {0, 1}
            return
        if how == 2:
            named["client_column"] = "sex"
        public: dict[str, Any] = {"ranges": {"age": (0.0, 90.0)}} if how == 3 else {}
        if how == 4:
            named.pop("split_column")
        _sound(load(DataSettings(name=str(path), **named, **public)))

    return make, check


TARGETS = (
    Target("csv", 0.03, csv_files),
    Target("npz", 0.03, npz),
    Target("parquet", 0.03, parquet),
    Target("images", 0.05, images),
    Target("texts", 0.02, texts),
)
