"""Rows of numbers and categories: CSV files, parquet files, and what they become."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstill.data import DataSettings, load, load_node_data
from fedstill.data.column import Column
from fedstill.data.held_out import hold_out_evenly
from fedstill.errors import RequestError

ROWS = """age,sex,pain,sick,part
20,f,1,no,train
60,m,2,yes,train
,m,2,yes,train
40,f,1,no,test
80,x,,yes,test
"""
RANGES = {"age": (20.0, 60.0)}
CATEGORIES = {"sex": ("f", "m"), "pain": (1, 2)}


def csv(path: Path, text: str = ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def options(path: Path, **more: Any) -> DataSettings:
    given = {"label_column": "sick", "split_column": "part", **more}
    return DataSettings(name=str(path), **{k: v for k, v in given.items() if v is not None})


def refused(path: Path, **more: Any) -> str:
    with pytest.raises(RequestError) as caught:
        load(options(path, **more))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_declared_columns_become_these_features(tmp_path: Path) -> None:
    """By hand: age 20..60 to -1..1, an indicator of holes, one feature per category."""
    path = csv(tmp_path / "t.csv", ROWS.replace("80,x", "80,m"))
    with pytest.warns(UserWarning, match=r"'age': values outside its declared range: 1"):
        data = load(options(path, ranges=RANGES, categories=CATEGORIES, missing=("age",)))
    assert data.train.inputs.tolist() == [
        [-1, 0, 1, 0, 1, 0],
        [1, 0, 0, 1, 0, 1],
        [0, 1, 0, 1, 0, 1],
    ]
    assert data.test.inputs.tolist() == [[0, 0, 1, 0, 1, 0], [2, 0, 0, 1, 0, 0]]
    assert data.class_names == ("no", "yes")
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 1, 1], [0, 1])
    assert data.shape == (6,)
    assert data.table
    assert not any(column.undeclared for column in data.columns)


def test_undeclared_columns_follow_the_training_records_alone(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"'sex': values that do not occur in training.*: x"):
        data = load(options(csv(tmp_path / "t.csv")))
    assert data.columns == (
        Column("age", 20.0, 60.0, (), True, "ranges"),  # mean 40, deviation 20
        Column("sex", values=("f", "m"), undeclared="categories"),
        Column("pain", *_mean_and_deviation([1, 2, 2]), undeclared="ranges"),
    )
    assert data.test.inputs[1].tolist() == [2, 0, 0, 0, 0]  # 80, x, missing


def _mean_and_deviation(values: list[float]) -> tuple[float, float]:
    mean, deviation = np.mean(values), np.std(values)
    return float(mean - deviation), float(mean + deviation)


@pytest.mark.parametrize("form", ["csv", "parquet", "semicolon", "tab"])
def test_the_form_of_the_file_does_not_matter(tmp_path: Path, form: str) -> None:
    text = "a,b,label\n0.5,x,0\n1.5,y,1\n0,x,0\n2,y,1\n3,x,0\n4,y,1\n"
    one = csv(tmp_path / "one.csv", text)
    path = tmp_path / f"other.{'tsv' if form == 'tab' else 'csv'}"
    if form == "parquet":
        path = path.with_suffix(".parquet")
        rows = [line.split(",") for line in text.splitlines()[1:]]
        numbers = [float(row[0]) for row in rows], [int(row[2]) for row in rows]
        words = pa.array([row[1] for row in rows]).dictionary_encode()
        pq.write_table(pa.table({"a": numbers[0], "b": words, "label": numbers[1]}), path)
    elif form == "semicolon":  # as a spreadsheet writes it where commas are decimal
        path.write_text("\ufeff" + text.replace(",", ";").replace(".", ",").replace("\n", "\r\n"))
    else:
        path.write_text(text.replace(",", "\t" if form == "tab" else ","))
    with pytest.warns(UserWarning, match="no test split"):
        datas = [load(DataSettings(name=str(p))) for p in (one, path)]
    assert datas[0].fingerprint == datas[1].fingerprint


def test_a_folder_of_files_is_one_client_per_file(tmp_path: Path) -> None:
    for name in ("west", "east"):
        csv(tmp_path / "sites" / f"{name}.csv", ROWS.replace("80,x", "50,m"))
    data = load(options(tmp_path / "sites"))
    assert data.group_names == ("east", "west")
    assert data.owned_by == "file"
    assert data.train.groups is not None
    assert data.train.groups.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test.groups is not None
    assert data.test.groups.tolist() == [0, 0, 1, 1]
    by_column = load(options(tmp_path / "sites", client_column="sex"))
    assert by_column.group_names == ("f", "m")
    assert by_column.owned_by == "value of 'sex'"
    assert [column.name for column in by_column.columns] == ["age", "pain"]


def test_files_of_two_splits(tmp_path: Path) -> None:
    csv(tmp_path / "set" / "train.csv", "a,label\n1,x\n2,y\n")
    csv(tmp_path / "set" / "test.csv", "label,a\ny,2\n")
    data = load(DataSettings(name=str(tmp_path / "set")))
    assert data.test.inputs.tolist() == [[1.0]]
    assert data.test.labels.tolist() == [1]
    assert data.train.groups is None


def test_features_can_be_chosen(tmp_path: Path) -> None:
    path = csv(tmp_path / "t.csv", ROWS.replace("80,x", "50,m"))
    named = load(options(path, features=("pain", "age")))
    assert [column.name for column in named.columns] == ["pain", "age"]
    ignored = load(options(path, ignore=("sex",)))
    assert [column.name for column in ignored.columns] == ["age", "pain"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"label_column": "ill"}, r"no column 'ill' (it has: age, sex, pain, sick, part)"),
        ({"split_column": "half"}, "name the right one in data.split_column"),
        ({"split_column": "sex"}, "needs the values train and test"),
        ({"client_column": "site"}, "name the right one in data.client_column"),
        ({"ranges": {"agee": (0.0, 1.0)}}, "data.ranges: no column 'agee'"),
        ({"ranges": {"age": (9.0, 1.0)}}, "the first must be less than the second"),
        ({"ranges": {"sick": (0.0, 1.0)}}, "'sick' is no feature"),
        ({"ranges": RANGES, "categories": {"age": (1,)}}, "keep one"),
        ({"ranges": {"sex": (0.0, 1.0)}}, "row 0 (counting from 0): 'sex' is 'f', not a finite"),
        ({"categories": {"sex": ("f", "m")}}, "'sex' is 'x', none of its categories; add it to"),
        ({"categories": {"sex": ("f", "f")}}, "give each value once"),
        ({"features": ()}, "no column is left"),
        ({"ignore": ("who",)}, "data.ignore: no column 'who'"),
        ({"image_column": "sex"}, "cannot be decoded"),
        ({"test_share": 0.5}, "there is a test split already"),
        ({"mean": (0.0,), "std": (1.0,)}, "their scaling is data.ranges"),
    ],
)
def test_wrong_settings_are_explained(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    assert said in refused(csv(tmp_path / "t.csv"), **more)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("\n\n", "names no columns"),
        ("age,sick,part\n", "holds no records"),
        ("age,sick,part", "holds no records"),
        ("age,sick,part\n\n  \n", "holds no records"),
        ("age,sick,part\n1,no,train\n2,no\n", "Expected 3 columns, got 2"),
        ("age,sick,part\n1,no,train\n2,no,test,9\n", "Expected 3 columns, got 4"),
        ("age,age,sick\n1,2,3\n", "two columns are called 'age'"),
        ("age,sick,part\n1,no,train\n1,maybe,test\n", "class 'maybe' does not occur"),
        ("age,sick,part\n1,,train\n1,yes,test\n", "'sick' is empty"),
        ("age,sick,part\n1,no,train\n1,no,\n", "'part' is empty"),
        ("age,sick,part\n1,no,train\ninf,no,test\n", "'age' is 'inf', not a finite number"),
        ("age,sick,part\n1e999,no,train\n1,no,test\n", "not a finite number"),
        ("age,sick,part\n1,0,train\n2,5,test\n", "label 5 is out of range"),
        ("age,sick,part\n1,-1,train\n2,-1,test\n", "label -1 is out of range"),
        ("age,sick,part\n1,0.5,train\n2,0.5,test\n", "neither numbers nor words"),
        (
            "age,sick,part\n" + "1,no,train\n" * 11 + "l2,no,train\n1,no,test\n",
            "most of its values",
        ),
        (
            "id,sick,part\n" + "".join(f"p{i},no,train\n" for i in range(101)) + "p,no,test\n",
            "leave it out",
        ),
    ],
)
def test_wrong_files_are_explained(tmp_path: Path, text: str, said: str) -> None:
    message = refused(csv(tmp_path / "t.csv", text))
    assert said in message
    assert "t.csv" in message or "data." in message


def test_bytes_that_are_no_csv(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    assert "not a CSV file of UTF-8 text" in refused(path)
    path.write_bytes(b"age,sick\n\xff\xfe,1\n")
    assert "not a readable CSV file" in refused(path)
    path.write_bytes(b"a" * (2**20 + 2))
    assert "first line" in refused(path)


def test_a_file_larger_than_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = csv(tmp_path / "t.csv")
    monkeypatch.setattr("fedstill.data.limits.os.sysconf", lambda _: 8)
    assert "GiB and this machine has" in refused(path)


def test_columns_of_other_types_are_named(tmp_path: Path) -> None:
    table = {"when": pa.array([1, 2], pa.timestamp("ms")), "label": [0, 1], "x": [1.0, 2.0]}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    said = refused(tmp_path / "t.parquet", label_column=None, split_column=None)
    assert "column 'when' holds timestamp[ms], neither numbers nor words" in said
    assert """data.ignore=["when"]""" in said


def test_labels_from_one_have_no_class_zero(tmp_path: Path) -> None:
    text = "x,label\n" + "".join(f"{i},{1 + i % 3}\n" for i in range(15))
    with pytest.warns(UserWarning, match="no test split"):
        data = load(DataSettings(name=str(csv(tmp_path / "t.csv", text))))
    assert data.class_names == ("1", "2", "3")
    assert set(data.train.labels.tolist()) == {0, 1, 2}
    text = text.replace(",1\n", ",0\n")  # 0, 2, 3: class 1 is missing by chance
    with pytest.warns(UserWarning, match="no test split"):
        data = load(DataSettings(name=str(csv(tmp_path / "t.csv", text))))
    assert data.class_names == ("0", "1", "2", "3")


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    share=st.floats(0.05, 0.9),
    data=st.data(),
)
def test_a_share_of_every_class_of_every_owner_is_held_out(
    labels: list[int], share: float, data: st.DataObject
) -> None:
    owners = data.draw(st.lists(st.integers(0, 2), min_size=len(labels), max_size=len(labels)))
    held = hold_out_evenly(np.array(labels), np.array(owners), share, 0)
    for label, owner in set(zip(labels, owners, strict=True)):
        stratum = (np.array(labels) == label) & (np.array(owners) == owner)
        size = int(stratum.sum())
        assert held[stratum].sum() == min(int(np.floor(size * share + 0.5)), size - 1)
    assert np.array_equal(held, hold_out_evenly(np.array(labels), np.array(owners), share, 0))


def test_the_hold_out_follows_its_own_seed(tmp_path: Path) -> None:
    path = csv(tmp_path / "t.csv", "x,label\n" + "".join(f"{i},{i % 2}\n" for i in range(60)))
    with pytest.warns(UserWarning, match="30% of every class, chosen by data.split_seed"):
        first, again, other = (
            load(DataSettings(name=str(path), test_share=0.3, split_seed=s)) for s in (1, 1, 2)
        )
    assert (len(first.train), len(first.test)) == (42, 18)
    assert first.test.labels.bincount().tolist() == [9, 9]
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_a_wide_range_from_a_server_breaks_nothing(tmp_path: Path) -> None:
    path = csv(tmp_path / "t.csv", "x,label\n1,0\n2,1\n")
    wide = (Column("x", -1.7e308, 1.7e308),)
    split = load_node_data(path, DataSettings(), (1,), ("0", "1"), wide)
    assert torch.isfinite(split.inputs).all()


NODE = (Column("age", 20.0, 60.0), Column("sex", values=("f", "m")))
LEFT_OUT = "age,sex,sick,part\n20,f,no,train\n60,z,no,train\nold,m,yes,train\n40,m,yes,train\n"


def test_a_node_encodes_by_the_task(tmp_path: Path) -> None:
    path = csv(tmp_path / "t.csv", ROWS.replace("80,x", "50,m"))
    how = DataSettings(label_column="sick", split_column="part")
    for tolerant in (False, True):
        split = load_node_data(path, how, (3,), ("no", "yes"), NODE, tolerant=tolerant)
        assert split.inputs.tolist() == [[-1, 1, 0], [1, 0, 1], [0, 0, 1]]
        assert split.labels.tolist() == [0, 1, 1]


def test_a_node_whose_rows_are_all_for_the_test(tmp_path: Path) -> None:
    path = csv(tmp_path / "t.csv", ROWS.replace("train", "test").replace("80,x", "50,m"))
    how = DataSettings(label_column="sick", split_column="part")
    with pytest.raises(RequestError, match="'part' says train in no row"):
        load_node_data(path, how, (3,), ("no", "yes"), NODE)
    assert len(load_node_data(path, how, (3,), ("no", "yes"), NODE, tolerant=True)) == 0


def test_where_privacy_is_on_a_row_that_does_not_fit_does_not_count(tmp_path: Path) -> None:
    path = csv(tmp_path / "t.csv", LEFT_OUT + "50,m,yes\n30,f,maybe,train\n")
    how = DataSettings(label_column="sick", split_column="part")
    with pytest.warns(UserWarning, match="3 of 5 records do not fit the task"):
        split = load_node_data(path, how, (3,), ("no", "yes"), NODE, tolerant=True)
    assert split.labels.tolist() == [0, 1]
    with pytest.raises(RequestError, match="Expected 4 columns, got 3"):
        load_node_data(path, how, (3,), ("no", "yes"), NODE)


GOOD = ["20,f,no,train", "60,m,yes,train", "1.5,f,no,train", "?,m,yes,train"]


@settings(max_examples=200, deadline=None)
@given(
    line=st.binary(max_size=40).map(lambda data: data.replace(b"\n", b""))
    | st.sampled_from([b'"', b'60,"m,yes,train', b"1,2", b"old,m,yes,train", b"\xff,m,yes,train"]),
    place=st.integers(0, 4),
)
def test_where_privacy_is_on_no_line_decides_about_another(
    tmp_path_factory: pytest.TempPathFactory, line: bytes, place: int
) -> None:
    """Adding one line adds one record or none, and changes nothing else: what a guarantee about
    adding one record needs."""
    folder = tmp_path_factory.mktemp("lines")
    how = DataSettings(label_column="sick", split_column="part")
    lines = [text.encode() for text in GOOD]
    found = []
    for number, rows in enumerate((lines, [*lines[:place], line, *lines[place:]])):
        path = folder / f"{number}.csv"
        path.write_bytes(b"\n".join([b"age,sex,sick,part", *rows]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            split = load_node_data(path, how, (3,), ("no", "yes"), NODE, tolerant=True)
        found.append(
            [(*x, y) for x, y in zip(split.inputs.tolist(), split.labels.tolist(), strict=True)]
        )
    without, having = found
    assert len(without) == 4
    assert len(having) - len(without) in (0, 1)
    more = having[place:][: len(having) - len(without)]
    assert [*having[:place], *having[place + len(more) :]] == without


@pytest.mark.parametrize("tolerant", [False, True])
def test_text_that_is_not_utf_8_spoils_its_own_row(tmp_path: Path, tolerant: bool) -> None:
    sexes = pa.array([b"f", b"\xff", b"m"]).view(pa.binary()).cast(pa.binary())
    sexes = pa.Array.from_buffers(pa.string(), 3, sexes.buffers())
    table = pa.table({"age": [20, 60, 40], "sex": sexes, "label": ["no", "no", "yes"]})
    pq.write_table(table, tmp_path / "t.parquet")
    read = (tmp_path / "t.parquet", DataSettings(), (3,), ("no", "yes"), NODE)
    if not tolerant:
        with pytest.raises(RequestError, match=r"row 1 .*'sex' is .*none of its categories"):
            load_node_data(*read)
        return
    with pytest.warns(UserWarning, match="1 of 3 records do not fit"):
        split = load_node_data(*read, tolerant=True)
    assert split.inputs.tolist() == [[-1, 1, 0], [0, 0, 1]]


def test_numbers_that_are_names_mean_the_same_on_a_node(tmp_path: Path) -> None:
    path = csv(tmp_path / "t.csv", "age,sex,label\n20,f,2\n60,m,3\n")
    for tolerant in (False, True):
        split = load_node_data(path, DataSettings(), (3,), ("1", "2", "3"), NODE, tolerant=tolerant)
        assert split.labels.tolist() == [1, 2]
