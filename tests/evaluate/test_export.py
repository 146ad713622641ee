import io
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from typer.testing import CliRunner

from fedstill.cli import app
from fedstill.data import DataSettings, load
from fedstill.errors import RequestError
from fedstill.evaluate.export import FORMS, export_set
from fedstill.records import SyntheticSet
from fedstill.runs.sets import SetMetadata, StoredSet, load_set, save_sets

METADATA = SetMetadata(
    method="feddm",
    round=5,
    data="toy",
    class_names=("a/b", "a:b", "c"),
    mean=(0.5,),
    std=(0.25,),
    shape=(1, 2, 2),
)


@pytest.fixture
def stored(tmp_path: Path) -> StoredSet:
    path = tmp_path / "run" / "synthetic" / "round-0005.safetensors"
    images = torch.tensor([-9.0, -2.0, 0.0, 2.0]).view(1, 1, 2, 2).repeat(3, 1, 1, 1)
    sets = {
        4: SyntheticSet(images[:2], torch.tensor([0, 2])),
        1: SyntheticSet(images[2:], torch.tensor([1])),
    }
    save_sets(path, sets, METADATA)
    return load_set(tmp_path / "run")


def test_a_stored_set_is_a_torch_data_set(stored: StoredSet) -> None:
    images, labels = next(iter(DataLoader(stored, batch_size=3)))
    assert images.shape == (3, 1, 2, 2)
    assert labels.tolist() == [1, 0, 2]


def test_folder_of_images(stored: StoredSet, tmp_path: Path) -> None:
    written = export_set(stored, "folder", tmp_path / "out")
    assert sorted(str(p.relative_to(tmp_path / "out")) for p in written) == [
        "a_b-0/client-004-00001.png",
        "a_b-1/client-001-00000.png",
        "c/client-004-00002.png",
    ]
    # 0.25 x + 0.5, clipped to 0..1
    assert np.asarray(Image.open(written[0])).tolist() == [[0, 0], [128, 255]]


def test_parquet_can_be_trained_on(stored: StoredSet, tmp_path: Path) -> None:
    for split in ("train", "test"):
        export_set(stored, "parquet", tmp_path / "data" / "toy" / f"{split}.parquet")
    data = load(DataSettings(name="toy", dir=str(tmp_path / "data"), client_column="client"))
    assert data.class_names == METADATA.class_names
    assert data.train.labels.tolist() == [1, 0, 2]
    assert data.train.inputs[0].flatten().tolist() == [0, 0, 128, 255]
    assert data.group_names == ("1", "4")


def test_soft_labels_are_exported_with_the_class(tmp_path: Path) -> None:
    soft = torch.tensor([[0.25, 0.75, 0.0]])
    save_sets(tmp_path / "s", {0: SyntheticSet(torch.zeros(1, 1, 2, 2), soft)}, METADATA)
    export_set(load_set(tmp_path / "s"), "parquet", tmp_path / "s.parquet")
    row = pq.read_table(tmp_path / "s.parquet").to_pylist()[0]
    assert row["label"] == 1
    assert row["label_distribution"] == [0.25, 0.75, 0.0]


def test_npz_keeps_every_bit(stored: StoredSet, tmp_path: Path) -> None:
    export_set(stored, "npz", tmp_path / "set.npz")
    with np.load(tmp_path / "set.npz", allow_pickle=False) as file:
        assert np.array_equal(file["x"], stored.images.numpy())
        assert file["y"].tolist() == [1, 0, 2]
        assert file["class_names"].tolist() == list(METADATA.class_names)


def test_hugging_face_layout(stored: StoredSet, tmp_path: Path) -> None:
    data, card = export_set(stored, "hf", tmp_path / "hub")
    table = pq.read_table(data)
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["label"] == {"names": list(METADATA.class_names), "_type": "ClassLabel"}
    picture = Image.open(io.BytesIO(table.to_pylist()[0]["image"]["bytes"]))
    assert picture.size == (2, 2)
    assert 'pretty_name: "feddm on toy, round 5"' in card.read_text()


def test_what_cannot_be_done_is_explained(stored: StoredSet, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"no form 'png'"):
        export_set(stored, "png", tmp_path / "x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(RequestError, match="already exists"):
        export_set(stored, "folder", tmp_path / "full")
    with pytest.raises(RequestError, match="no synthetic sets"):
        load_set(tmp_path / "full")
    vectors = StoredSet(
        torch.zeros(1, 7),
        torch.zeros(1, dtype=torch.int64),
        torch.zeros(1, dtype=torch.int32),
        SetMetadata("m", 1, "d", ("a",), (), (), (7,)),
    )
    with pytest.raises(RequestError, match="--to npz"):
        export_set(vectors, "folder", tmp_path / "y")


@pytest.mark.parametrize("form", FORMS)
def test_the_command(
    form: str, stored: StoredSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["export", "run", "--to", form])
    assert done.exit_code == 0, done.output
    assert "3 images: " in done.output
    assert any(tmp_path.glob("feddm-round-0005*"))
