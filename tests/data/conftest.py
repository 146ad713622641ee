"""Tiny data sets that the tests write themselves."""

import io
import json
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

Writer = Callable[..., Path]


def png(value: int = 0, size: tuple[int, int] = (4, 4), mode: str = "L") -> bytes:
    """An image whose pixels count up from ``value``."""
    channels = 3 if mode == "RGB" else 1
    count = size[0] * size[1] * channels
    pixels = ((np.arange(count) + value) % 256).astype(np.uint8)
    shape = (size[1], size[0], channels) if channels > 1 else (size[1], size[0])
    buffer = io.BytesIO()
    Image.fromarray(pixels.reshape(shape)).save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the user's cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FEDSTILL_CACHE", str(folder))
    return folder


@pytest.fixture
def write_parquet() -> Writer:
    """Write a parquet file in the Hugging Face layout."""

    def write(
        path: Path,
        images: Sequence[bytes | None],
        labels: Sequence[object],
        names: Sequence[str] | None = None,
        image_column: str = "image",
        label_column: str = "label",
        **more: Sequence[object],
    ) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        cells = [{"bytes": data, "path": None} for data in images]
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        columns = {image_column: pa.array(cells, kind), label_column: pa.array(labels), **more}
        table = pa.table(columns)
        if names is not None:
            features = {label_column: {"names": list(names), "_type": "ClassLabel"}}
            entry = json.dumps({"info": {"features": features}})
            table = table.replace_schema_metadata({"huggingface": entry})
        pq.write_table(table, path)
        return path

    return write


@pytest.fixture
def small_set(tmp_path: Path, write_parquet: Writer) -> Path:
    """A folder with 12 training and 4 test records of 3 classes."""
    folder = tmp_path / "sets" / "small"
    labels = [i % 3 for i in range(12)]
    names = ["cat", "dog", "eel"]
    write_parquet(folder / "train.parquet", [png(i) for i in range(12)], labels, names)
    write_parquet(folder / "test.parquet", [png(100 + i) for i in range(4)], labels[:4], names)
    return folder


class Stored:
    """Behaves like a datasets.Dataset over a parquet file."""

    def __init__(self, path: Path, *, columns: list[str] | None = None, files: bool = True) -> None:
        self.path, self.files = path, files
        self.table = pq.read_table(path, columns=columns)
        self.cache_files = [{"filename": str(path)}] if files else []
        self.features = types.SimpleNamespace(arrow_schema=pq.read_schema(path))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def with_format(self, kind: str) -> "Stored":
        assert kind == "arrow"
        return self

    def select_columns(self, columns: list[str]) -> "Stored":
        return Stored(self.path, columns=columns)

    def iter(self, batch_size: int) -> Iterator[pa.Table]:
        assert batch_size > 1
        for start in range(0, len(self), 3):  # several batches, whatever was asked for
            yield self.table.slice(start, 3)


# What is on the hub: splits by name and subset of a data set.
Hub = dict[tuple[str, str | None], dict[str, Stored]]


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub whose data sets the test puts there, behind flwr_datasets' own interface."""
    sets: Hub = {}

    class FederatedDataset:
        def __init__(
            self,
            *,
            dataset: str,
            partitioners: dict[str, int],
            shuffle: bool,
            subset: str | None = None,
        ) -> None:
            assert not shuffle
            assert partitioners == {}
            if (dataset, subset) not in sets:
                raise ConnectionError("no route\nto host")
            self.splits = sets[dataset, subset]

        def load_split(self, split: str) -> Stored:
            if split not in self.splits:
                raise ValueError(f"The given split: '{split}' is not present")
            return self.splits[split]

    package = types.ModuleType("flwr_datasets")
    package.FederatedDataset = FederatedDataset  # type: ignore[attr-defined]
    tables = types.ModuleType("datasets.table")
    tables.embed_table_storage = lambda table: table  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flwr_datasets", package)
    monkeypatch.setitem(sys.modules, "datasets", types.ModuleType("datasets"))
    monkeypatch.setitem(sys.modules, "datasets.table", tables)
    monkeypatch.setattr("fedstill.data.hub._hub_answers", lambda: True)
    return sets
