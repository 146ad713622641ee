"""Images of several sites, images named in a table, and grey and colour images together."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fedstill.config import resolve
from fedstill.data import DataSettings, load
from fedstill.errors import RequestError

from .conftest import png

NO_TEST = pytest.mark.filterwarnings("ignore:.*no test split")


def image(path: Path, value: int = 0, mode: str = "L") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(value, mode=mode))
    return path


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """Two hospitals; one of them has a class that the other has not."""
    folder = tmp_path / "sites"
    for site, kinds in (("hospital-B", ("cat", "dog")), ("hospital-A", ("dog", "eel"))):
        for kind in kinds:
            for number in range(5):
                image(folder / site / kind / f"{number}.png", number)
    return folder


def refused(settings: DataSettings) -> str:
    with pytest.raises(RequestError) as caught:
        load(settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_site_is_an_owner(sites: Path) -> None:
    with pytest.warns(UserWarning, match="every fifth image of every class of every site"):
        data = load(DataSettings(name=str(sites)))
    assert data.class_names == ("cat", "dog", "eel")
    assert data.group_names == ("hospital-A", "hospital-B")
    assert data.owned_by == "site"
    assert data.train.groups is not None
    assert data.train.groups.bincount().tolist() == [8, 8]
    assert data.train.labels[data.train.groups == 0].unique().tolist() == [1, 2]
    assert data.test.groups is not None
    assert data.test.groups.tolist() == [0, 0, 1, 1]
    assert resolve({"method": "fedavg", "data": str(sites)}).partition == "natural"


def test_sites_with_test_images_of_their_own(sites: Path) -> None:
    for site in sites.iterdir():
        (site / "train").mkdir()
        for kind in [p for p in site.iterdir() if p.name != "train"]:
            kind.rename(site / "train" / kind.name)
        image(site / "test" / "dog" / "9.png", 9)
    data = load(DataSettings(name=str(sites)))
    assert (len(data.train), len(data.test)) == (20, 2)
    assert data.test.labels.tolist() == [1, 1]


@NO_TEST
def test_wrong_sites_are_explained(sites: Path) -> None:
    (sites / "hospital-C" / "dog").mkdir(parents=True)
    assert "hospital-C: this site has no training images" in refused(DataSettings(name=str(sites)))
    (sites / "hospital-C" / "train" / "dog").mkdir(parents=True)
    assert "has train/ but no test/" in refused(DataSettings(name=str(sites)))


@NO_TEST
def test_a_flat_folder_is_no_site_folder(tmp_path: Path) -> None:
    for number in range(5):
        image(tmp_path / "flat" / "cat" / f"{number}.png", number)
    data = load(DataSettings(name=str(tmp_path / "flat")))
    assert data.train.groups is None
    assert resolve({"method": "fedavg", "data": str(tmp_path / "flat")}).partition != "natural"


@NO_TEST
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_images_named_in_a_table(tmp_path: Path, form: str) -> None:
    paths = [image(tmp_path / "photos" / f"{i}.png", i) for i in range(12)]
    named = [f"photos/{i}.png" if i else str(paths[0]) for i in range(12)]
    kinds, owners = ["cat", "dog"] * 6, ["ann", "ann", "ben", "ben"] * 3
    table = tmp_path / f"index.{form}"
    if form == "csv":
        lines = [f"{p},{k},{o}" for p, k, o in zip(named, kinds, owners, strict=True)]
        table.write_text("\n".join(["photo,label,who", *lines]) + "\n")
    else:
        pq.write_table(pa.table({"photo": named, "label": kinds, "who": owners}), table)
    settings = DataSettings(name=str(table), image_column="photo", client_column="who")
    data = load(settings)
    assert data.shape == (1, 4, 4)
    assert data.class_names == ("cat", "dog")
    assert data.group_names == ("ann", "ben")
    firsts = torch.cat([data.train.inputs, data.test.inputs])[:, 0, 0, 0]
    labels = torch.cat([data.train.labels, data.test.labels])
    assert sorted(firsts.tolist()) == list(range(12))
    assert torch.equal(firsts % 2, labels)
    assert resolve({"method": "fedavg", "data": {"name": str(table), "image_column": "photo"}})
    paths[3].unlink()
    assert "row 3 (counting from 0): the image cannot be decoded" in refused(settings)


@NO_TEST
def test_one_grey_image_does_not_make_all_grey(tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    for number in range(10):
        image(folder / "cat" / f"{number}.png", number, "L" if number == 0 else "RGB")
    with pytest.warns(UserWarning, match="1 of 8 images are grey, the others colour: all are read"):
        data = load(DataSettings(name=str(folder)))
    assert data.shape == (3, 4, 4)
    assert load(DataSettings(name=str(folder), channels=1)).shape == (1, 4, 4)
    for number in range(1, 6):
        image(folder / "cat" / f"{number}.png", number, "L")
    with pytest.warns(UserWarning, match=r"data\.channels = 3 reads them in colour"):
        assert load(DataSettings(name=str(folder))).shape == (1, 4, 4)
