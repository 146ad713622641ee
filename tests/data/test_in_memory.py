"""Data that a program has in memory: arrays, torch datasets, tables, and lists of them."""

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import fedstill
from fedstill.data import DataSettings
from fedstill.data.in_memory import dataset_from
from fedstill.errors import RequestError

X = np.arange(60, dtype=np.float32).reshape(20, 3)
Y = np.arange(20) % 2
NO_TEST = pytest.mark.filterwarnings("ignore:.*no test split")
TABLE = pa.table({"a": X[:, 0], "b": ["x", "y"] * 10, "label": Y})


class Photographs(torch.utils.data.Dataset[tuple[Image.Image, int]]):
    """As torchvision's data sets are without a transformation."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, number: int) -> tuple[Image.Image, int]:
        pixels = np.full((4, 4, 3), number, dtype=np.uint8)
        return Image.fromarray(pixels), number % 2


class Stored:
    """Behaves like a datasets.Dataset."""

    features = types.SimpleNamespace(arrow_schema=TABLE.schema)

    def __init__(self, table: pa.Table = TABLE) -> None:
        self.table = table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def with_format(self, kind: str) -> "Stored":
        assert kind == "arrow"
        return self

    def select_columns(self, columns: list[str]) -> "Stored":
        return Stored(self.table.select(columns))

    def iter(self, batch_size: int) -> Iterator[pa.Table]:
        yield from (self.table.slice(start, 7) for start in range(0, len(self), 7))


@pytest.fixture(autouse=True)
def hugging_face(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = types.ModuleType("datasets.table")
    tables.embed_table_storage = lambda table: table  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", types.ModuleType("datasets"))
    monkeypatch.setitem(sys.modules, "datasets.table", tables)


ARRAYS: dict[str, Any] = {
    "arrays": (X, Y),
    "tensors": (torch.from_numpy(X), torch.from_numpy(Y)),
    "lists": (X.tolist(), Y.tolist()),
    "torch": TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
    "words": (X, ["even", "odd"] * 10),
}


@NO_TEST
@pytest.mark.parametrize("form", ARRAYS)
def test_arrays_in_every_form(form: str) -> None:
    data = dataset_from(ARRAYS[form])
    assert (len(data.train), len(data.test), data.shape, data.classes) == (16, 4, (3,), 2)
    assert data.train.inputs.dtype == torch.float32
    rows = torch.cat([data.train.inputs, data.test.inputs])
    assert sorted(rows[:, 0].tolist()) == X[:, 0].tolist()
    assert torch.equal(data.train.inputs[:, 0].long() // 3 % 2, data.train.labels)
    assert data.test.labels.bincount().tolist() == [2, 2]


@NO_TEST
@pytest.mark.parametrize("make", [lambda: TABLE, lambda: Stored()], ids=["arrow", "hugging face"])
def test_tables_in_every_form(make: Any) -> None:
    data = dataset_from(make())
    assert [column.name for column in data.columns] == ["a", "b"]
    assert (len(data.train), data.shape) == (16, (3,))
    declared = dataset_from(make(), DataSettings(label_column="b", features=("a",)))
    assert declared.class_names == ("x", "y")


@NO_TEST
def test_a_pandas_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "b": ["x", "y"] * 10, "label": Y})
    assert dataset_from(frame).fingerprint == dataset_from(TABLE).fingerprint
    frame.loc[0, "a"] = None
    assert dataset_from({"train": frame, "test": frame}).columns[0].indicator


def test_splits(recwarn: pytest.WarningsRecorder) -> None:
    both = dataset_from({"train": Stored(), "validation": Stored(TABLE.slice(0, 5))})
    assert (len(both.train), len(both.test)) == (20, 5)
    four = dataset_from((X, Y, X[:3], Y[:3]))
    two = dataset_from((TensorDataset(*map(torch.from_numpy, (X, Y))), [(X[0], 0)]))
    assert (len(four.test), len(two.test)) == (3, 1)
    assert not recwarn.list


@NO_TEST
def test_images_without_a_transformation() -> None:
    data = dataset_from(Photographs())
    assert data.shape == (3, 4, 4)
    assert data.train.inputs.dtype == torch.uint8
    assert data.scaling.mean == (0.5, 0.5, 0.5)


@NO_TEST
def test_one_per_client(tmp_path: Path) -> None:
    listed = dataset_from([(X, Y)] * 11)
    assert listed.group_names[9:] == ("09", "10")
    assert listed.test.groups is not None
    assert listed.test.groups.bincount().tolist() == [4] * 11
    named = dataset_from({"ann": Stored(), "ben": Stored(TABLE.slice(0, 10))})
    assert named.group_names == ("ann", "ben")
    path = tmp_path / "a.csv"
    path.write_text("a,label\n" + "".join(f"{i},{i % 2}\n" for i in range(20)))
    assert dataset_from([path, str(path)]).group_names == ("0", "1")
    result = fedstill.run(
        "fedavg", data={"ann": (X, Y), "ben": (X, Y)}, rounds=1, workers=1, out=tmp_path / "run"
    )
    assert (result.summary.clients, result.summary.partition) == (2, "natural")
    assert set(result.metrics[0].details) == {"accuracy/ann", "accuracy/ben"}


@NO_TEST
def test_the_data_section_says_how_to_read_them(tmp_path: Path) -> None:
    result = fedstill.run(
        "fedavg",
        data=TABLE,
        rounds=1,
        workers=1,
        out=tmp_path / "run",
        set={"data.client_column": "b", "data.ranges": {"a": [0, 60]}},
    )
    assert result.summary.owners == "one per value of 'b' (x, y)"
    assert result.model.shapes["hidden0.weight"] == (200, 1)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "it is empty"),
        ({"test": (X, Y), "other": 3}, "data of client 'other', train: a int is none of"),
        ([(X, Y), TABLE], "some clients have arrays and others tables"),
        ([(X, Y), (X[:, :2], Y)], "records of shapes"),
        ((X, Y[:3]), r"labels of shape (3,)"),
        ((X[:0], Y[:0]), "N at least 1"),
        (([[1, 2], [3]], [0, 1]), "its rows differ in length"),
        ([[(X[0], 0), (X[0, :2], 1)]], r"[1]: an input of shape (2,)"),
        ([[X[0], X[1]]], "in place of an input and its label"),
        ([{"train": object()}], "a object is none of"),
        ((np.full((9, 2), np.nan), np.zeros(9)), "holds NaN"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@NO_TEST
def test_wrong_data_are_explained(data: Any, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        dataset_from(data)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
