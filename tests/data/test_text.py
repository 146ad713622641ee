"""Texts as records: vocabularies, windows, speakers, and what each mistake says."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstill.data import Dataset, DataSettings, load, partition
from fedstill.data.text import decode_texts, join_windows, read_plays
from fedstill.data.vocabulary import NOTHING, find_vocabulary, split_words
from fedstill.errors import RequestError
from fedstill.rng import Rng

from .conftest import Hub, Stored

PLAY = """ANN:
How now, good Ben? How now?

First Citizen:
Hm.

BEN:
Well, Ann: very well.
As ever, Ann.

And more of it!

ANN:
"""
CHARACTERS = find_vocabulary(None)


def refused(settings: DataSettings) -> str:
    with pytest.raises(RequestError) as caught:
        load(settings)
    message = str(caught.value)
    assert "\n" not in message
    return message


def spelled(data: Dataset, rows: torch.Tensor) -> list[str]:
    shown = {"space": " ", "newline": "\n"}
    names = [shown.get(name, name) for name in data.class_names]
    return ["".join(names[int(token)] for token in row) for row in rows]


@pytest.fixture
def play(tmp_path: Path) -> Path:
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "input.txt").write_text(PLAY)
    return tmp_path


def write_table(path: Path, **columns: list[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), path)
    return path


def test_characters_are_printable_ascii_and_fixed() -> None:
    assert len(CHARACTERS.tokens) == 97
    assert CHARACTERS.names[:3] == ("<other>", "newline", "space")
    encoded = CHARACTERS.encode("A~\né\x7f\t😀 ").tolist()
    assert [CHARACTERS.tokens[i] for i in encoded[:3]] == ["A", "~", "\n"]
    assert encoded[3:] == [0, 0, 0, 0, 2]


def test_words_of_a_stated_file(tmp_path: Path) -> None:
    assert split_words("Don't STOP_now, 12x é!") == [
        *("don't", "stop", "_", "now", ",", "12", "x", "é", "!")
    ]
    path = tmp_path / "words.txt"
    path.write_text("the\nDon't\n.\n")
    words = find_vocabulary(str(path))
    assert words.tokens == ("<other>", "the", "don't", ".")
    assert words.encode("The cat: don\u2019t.").tolist() == [1, 0, 0, 2, 3]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("the\n\ncat\n", "line 2: an empty vocabulary entry"),
        ("the\n  \n", "line 2: an empty vocabulary entry"),
        ("the\nNew York\n", "line 2: 'New York' is not one word"),
        ("the\ncat\nThe\n", "line 3: 'the' is in line 1 already"),
        ("", "the file is empty"),
    ],
)
def test_a_bad_vocabulary_is_refused(tmp_path: Path, play: Path, text: str, said: str) -> None:
    path = tmp_path / "words.txt"
    path.write_text(text)
    message = refused(DataSettings(name="shakespeare", dir=str(play), vocabulary=str(path)))
    assert said in message
    assert "data.vocabulary" in message
    assert "No such file" in refused(
        DataSettings(name="shakespeare", dir=str(play), vocabulary=str(tmp_path / "none"))
    )
    path.write_bytes(b"\xff\xfe")
    assert "UTF-8" in refused(DataSettings(name="shakespeare", dir=str(play), vocabulary=str(path)))


def test_a_play_has_a_client_a_speaker(play: Path) -> None:
    speakers = read_plays(play / "shakespeare" / "input.txt")
    assert speakers == {
        "ANN": "How now, good Ben? How now?\n\n",
        "First Citizen": "Hm.\n",
        "BEN": "Well, Ann: very well.\nAs ever, Ann.\nAnd more of it!\n",
    }
    with pytest.warns(UserWarning, match="1 of 3 speakers have no more than 5 characters"):
        data = load(DataSettings(name="shakespeare", dir=str(play), sequence_length=5))
    assert data.tokens
    assert (data.name, data.shape, data.classes) == ("shakespeare", (5,), 97)
    assert data.group_names == ("ANN", "BEN")
    assert spelled(data, data.train.inputs)[:2] == ["How n", "ow, g"]
    assert spelled(data, data.train.labels)[:2] == ["ow no", "w, go"]
    assert data.train.groups is not None
    assert data.test.groups is not None
    assert data.train.groups.tolist() == [0] * 4 + [1] * 8
    assert data.test.groups.tolist() == [0] + [1] * 2
    assert spelled(data, data.test.inputs)[0] == "ow no"  # the end of Ann's text
    part = partition(data.train.labels, "natural", None, 97, Rng(0), data.train.groups)
    assert part.sizes.tolist() == [4, 8]
    counts = part.counts(data.train.labels, 97)
    assert int(counts.sum()) == 12 * 5
    assert int(counts[0, CHARACTERS.tokens.index("w")]) == 2


@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet="ab \né", max_size=80), length=st.integers(1, 9))
def test_windows_cover_the_text_once(text: str, length: int) -> None:
    text = "ab" * 25 + text  # enough for five windows
    tokens = CHARACTERS.encode(text)
    decoded = decode_texts({"": text}, None, CHARACTERS, length, "here")
    inputs = torch.cat([decoded.train.inputs, decoded.test.inputs])
    labels = torch.cat([decoded.train.labels, decoded.test.labels])
    number = (len(tokens) - 1) // length
    assert torch.equal(inputs.flatten(), torch.from_numpy(tokens[: number * length]))
    following = tokens[1 : number * length + 1].astype(np.int64)
    assert np.array_equal(labels.flatten(), np.where(following > 0, following, NOTHING))
    assert len(decoded.test.labels) == number // 5
    assert decoded.group_names == ()


def test_too_little_text_is_refused(play: Path) -> None:
    where = DataSettings(name="shakespeare", dir=str(play), sequence_length=60)
    assert "no text is longer than data.sequence_length = 60 characters" in refused(where)
    with pytest.warns(UserWarning, match="2 of 3 speakers"):
        message = refused(DataSettings(name="shakespeare", dir=str(play), sequence_length=30))
    assert "no test text" in message
    assert "must be 1 or more" in refused(
        DataSettings(name="shakespeare", dir=str(play), sequence_length=0)
    )


def test_leafs_moving_windows_are_put_together_again() -> None:
    text, width = "To be, or not to be: that is the question.", 8
    rows = [("HAMLET", text[i : i + width], text[i + width]) for i in range(len(text) - width)]
    other = [("GHOST", "Mark me!", " "), ("GHOST", "I am thy", " ")]  # two that do not join
    mixed = [row for pair in zip(rows, other, strict=False) for row in pair] + rows[2:]
    assert join_windows(mixed) == {"HAMLET": text, "GHOST": "Mark me! I am thy "}


@pytest.mark.parametrize("hub", [True, False])
def test_shakespeare_in_leafs_form(tmp_path: Path, fake_hub: Hub, hub: bool) -> None:
    text = "O Romeo, Romeo! wherefore art thou Romeo? Deny thy father and refuse thy name."
    rows = range(len(text) - 20)
    path = write_table(
        tmp_path / "shakespeare" / "train.parquet",
        character_id=["JULIET"] * len(rows),
        x=[text[i : i + 20] for i in rows],
        y=[text[i + 20] for i in rows],
    )
    fake_hub["flwrlabs/shakespeare", None] = {"train": Stored(path)}
    folder = None if hub else str(tmp_path)
    data = load(DataSettings(name="shakespeare", dir=folder, sequence_length=10))
    assert data.group_names == ("JULIET",)
    assert spelled(data, torch.cat([data.train.inputs, data.test.inputs])) == [
        text[i : i + 10] for i in range(0, 70, 10)
    ]


def test_reddit_has_a_client_an_author(tmp_path: Path, fake_hub: Hub) -> None:
    words = tmp_path / "words.txt"
    words.write_text("i\nlike\nit\n.\n")
    path = write_table(
        tmp_path / "posts.parquet",
        author=["zed", "amy", "zed", "bob", "amy"],
        body=["I like it . TL;DR: I like it"] * 5,
        content=["I like it.", "I like cats. " * 8, "It? I like it. " * 6, "No.", "I. " * 3],
        summary=["-"] * 5,
    )
    fake_hub["dim/tldr_17_50k", None] = {"train": Stored(path)}
    with pytest.warns(UserWarning, match="1 of 3 speakers have no more than 4 words"):
        data = load(DataSettings(name="reddit", vocabulary=str(words), sequence_length=4))
    assert data.group_names == ("amy", "zed")
    assert data.class_names == ("<other>", "i", "like", "it", ".")
    assert data.train.inputs[0].tolist() == [1, 2, 0, 4]
    assert data.train.labels[0].tolist() == [2, NOTHING, 4, 1]  # nobody is asked to say "other"
    null = write_table(path, author=["zed", None], content=["a", "b"])
    fake_hub["dim/tldr_17_50k", None] = {"train": Stored(null)}
    assert "row 1 (counting from 0): 'author' is empty" in refused(DataSettings(name="reddit"))


def test_own_texts(tmp_path: Path) -> None:
    path = tmp_path / "diary.txt"
    path.write_text("Dear diary. " * 20)
    data = load(DataSettings(name=str(path), sequence_length=6))
    assert (data.name, data.train.groups, len(data.test)) == ("diary", None, 7)
    assert "a plain text and has no columns" in refused(
        DataSettings(name=str(path), client_column="who")
    )
    (tmp_path / "diaries").mkdir()
    path.rename(tmp_path / "diaries" / "input.txt")
    again = load(DataSettings(name=str(tmp_path / "diaries"), sequence_length=6))
    assert (again.name, again.fingerprint) == ("diaries", data.fingerprint)
    folder = tmp_path / "notes"
    for split in ("train", "test"):
        write_table(folder / f"{split}.parquet", note=[f"{split} text. " * 9] * 2, who=["b", "a"])
    wanted = DataSettings(
        name=str(folder), text_column="note", client_column="who", sequence_length=10
    )
    data = load(wanted)
    assert data.group_names == ("a", "b")
    assert spelled(data, data.test.inputs)[0] == "test text."
    assert data.fingerprint == load(wanted).fingerprint  # from the cache
    assert "data.client_column" in refused(DataSettings(name=str(folder), text_column="note"))


def test_settings_that_would_change_nothing_are_refused(play: Path) -> None:
    message = refused(DataSettings(name="shakespeare", dir=str(play), image_size=8))
    assert "data.image_size = 8: the records are text" in message
    assert "data.sequence_length = 8: the records are not text" in refused(
        DataSettings(sequence_length=8)
    )
    (play / "digits").mkdir()
    (play / "digits" / "input.txt").write_text("Not what --data digits means.")
    assert load(DataSettings(dir=str(play))).shape == (1, 8, 8)
    (play / "shakespeare" / "input.txt").unlink()
    assert "neither input.txt nor train.parquet" in refused(
        DataSettings(name="shakespeare", dir=str(play))
    )
    (play / "shakespeare" / "input.txt").write_bytes(b"ANN:\n\xff\n")
    assert "not UTF-8 text (at byte 5)" in refused(DataSettings(name="shakespeare", dir=str(play)))


@pytest.mark.parametrize("spec", ["dirichlet:0.1", "classes:2"])
def test_texts_have_no_class_to_partition_by(spec: str) -> None:
    labels = torch.zeros(9, 4, dtype=torch.int64)
    with pytest.raises(RequestError, match=f"partition {spec}: a text has no class"):
        partition(labels, spec, 2, 5, Rng(0))
    assert partition(labels, "iid", 3, 5, Rng(0)).sizes.tolist() == [3, 3, 3]
