"""Names, folders, files and the hub: what each name means, and what a wrong one says."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedstill.data import SOURCES, DataSettings, Scaling, load
from fedstill.errors import RequestError

from .conftest import Hub, Stored, png


def refused(settings: DataSettings) -> str:
    with pytest.raises(RequestError) as caught:
        load(settings)
    message = str(caught.value)
    assert "\n" not in message
    return message


def images(folder: Path, count: int, start: int = 0) -> None:
    folder.mkdir(parents=True)
    for i in range(count):
        (folder / f"{i:02}.png").write_bytes(png(start + i))


def test_the_built_in_digits_are_real_and_fixed() -> None:
    data = load(DataSettings())
    assert (data.name, data.shape, data.classes) == ("digits", (1, 8, 8), 10)
    assert (len(data.train), len(data.test)) == (1438, 359)
    assert data.train.inputs.dtype == torch.uint8
    assert int(data.train.inputs.max()) == 255
    assert data.fingerprint.startswith("39c073e0")
    pixels = data.train.inputs.double() / 255  # the constants are those of the public part
    assert data.scaling.mean[0] == pytest.approx(float(pixels.mean()), abs=1e-4)
    assert data.scaling.std[0] == pytest.approx(float(pixels.std()), abs=2e-4)
    assert bool(torch.isfinite(data.scaling(data.train.inputs)).all())


def test_digits_are_scikit_learns_own() -> None:
    reference = pytest.importorskip("sklearn.datasets").load_digits()
    data = load(DataSettings())
    held_out = np.arange(len(reference.target)) % 5 == 4
    expected = np.rint(reference.images * 255 / 16).astype(np.uint8)[:, None]
    assert np.array_equal(data.test.inputs.numpy(), expected[held_out])
    assert np.array_equal(data.train.inputs.numpy(), expected[~held_out])
    assert np.array_equal(data.train.labels.numpy(), reference.target[~held_out])


def test_digits_resize_and_refuse_columns() -> None:
    assert load(DataSettings(image_size=16)).shape == (1, 16, 16)
    assert "data.client_column" in refused(DataSettings(client_column="writer"))
    assert "data.image_size" in refused(DataSettings(image_size=0))


def test_every_source_is_described() -> None:
    images = {"digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "femnist"}
    domains = {"digit-domains", "digit-five", "office-home"}
    texts = {"shakespeare", "reddit"}
    assert set(SOURCES) == images | domains | texts
    for name, source in SOURCES.items():
        assert source.name == name
        assert source.description
        assert len(source.scaling.mean) == len(source.scaling.std)
        assert source.built_in == (name in ("digits", "digit-domains"))
        assert (source.model is not None) == source.text == (name in texts)
        assert (source.partition == "natural") == (name in domains | texts | {"femnist"})
    assert SOURCES["digits"].scaling == Scaling((0.3059,), (0.3763,))


def test_an_unknown_name_offers_the_nearest() -> None:
    assert "did you mean 'mnist'" in refused(DataSettings(name="mnits"))
    assert "no such file or folder" in refused(DataSettings(name="./nowhere"))
    assert "empty" in refused(DataSettings(name=" "))


def test_a_data_dir_without_the_set_says_what_it_holds(small_set: Path) -> None:
    where = str(small_set.parent)
    for name in ("cifar10", "tiny"):
        message = refused(DataSettings(name=name, dir=where))
        assert f"{where}/{name}/train.parquet" in message
        assert f"{where}/{name}/test.parquet" in message
        assert message.endswith("holds: small")
    assert "no such folder" in refused(DataSettings(name="mnist", dir=where + "/no"))


def test_a_folder_without_data_names_the_missing_files(tmp_path: Path, small_set: Path) -> None:
    (tmp_path / "bare").mkdir()
    message = refused(DataSettings(name=str(tmp_path / "bare")))
    assert "train.parquet (or .csv) not found" in message
    (small_set / "test.parquet").unlink()
    small_set.rename(small_set.with_name("mnist"))  # it has an official test split
    message = refused(DataSettings(name="mnist", dir=str(small_set.parent)))
    assert "test.parquet not found" in message
    assert "train.parquet" not in message


def test_the_users_constants_win_and_are_checked(small_set: Path) -> None:
    name = str(small_set)
    data = load(DataSettings(name=name, mean=(0.1,), std=(0.2,)))
    assert data.scaling == Scaling((0.1,), (0.2,))
    assert "one per channel" in refused(DataSettings(name=name, mean=(0.1, 0.1), std=(1.0, 1.0)))
    assert "set both" in refused(DataSettings(name=name, mean=(0.1,)))
    assert "set both" in refused(DataSettings(name=name, std=(0.1,)))
    assert "greater than 0" in refused(DataSettings(name=name, mean=(0.1,), std=(0.0,)))
    assert "finite" in refused(DataSettings(name=name, mean=(float("nan"),), std=(1.0,)))


def test_an_image_folder_with_its_own_test_split(tmp_path: Path) -> None:
    root = tmp_path / "pets"
    images(root / "train" / "dog", 3)
    images(root / "train" / "cat", 2, start=50)
    images(root / "test" / "cat", 1, start=90)
    (root / "train" / "dog" / "notes.txt").write_text("not an image")
    (root / "train" / ".hidden").mkdir()
    data = load(DataSettings(name=str(root)))
    assert (data.name, data.class_names) == ("pets", ("cat", "dog"))
    assert data.train.labels.tolist() == [0, 0, 1, 1, 1]
    assert data.train.inputs[:, 0, 0, 0].tolist() == [50, 51, 0, 1, 2]
    assert data.test.inputs[0, 0, 0, 0] == 90
    assert load(DataSettings(name=str(root))).fingerprint == data.fingerprint


def test_a_flat_image_folder_holds_every_fifth_file_out(tmp_path: Path) -> None:
    for number in (2, 10):
        images(tmp_path / "flat" / str(number), 6, start=number)
    data = load(DataSettings(name=str(tmp_path / "flat")))
    assert data.class_names == ("2", "10")  # in numeric order
    assert len(data.train) == 10
    assert data.test.inputs[:, 0, 0, 0].tolist() == [6, 14]
    assert data.test.labels.tolist() == [0, 1]


def test_wrong_image_folders_are_explained(tmp_path: Path) -> None:
    root = tmp_path / "pets"
    images(root / "train" / "dog", 3)
    assert "no test/" in refused(DataSettings(name=str(root)))
    images(root / "test" / "wolf", 1)
    assert "wolf" in refused(DataSettings(name=str(root)))
    images(tmp_path / "few" / "a", 3)
    assert "no test images" in refused(DataSettings(name=str(tmp_path / "few")))
    (tmp_path / "few" / "b").mkdir()
    assert "'b' has no training images" in refused(DataSettings(name=str(tmp_path / "few")))
    images(tmp_path / "bad" / "a", 6)
    (tmp_path / "bad" / "a" / "03.png").write_bytes(b"rubbish")
    assert "03.png: the image cannot be decoded" in refused(DataSettings(name=f"{tmp_path}/bad"))
    assert "no columns" in refused(DataSettings(name=f"{tmp_path}/bad", label_column="x"))


def test_an_npz_file(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    x = np.arange(4 * 5 * 5).reshape(4, 5, 5).astype(np.uint8)
    y = np.array([0, 1, 0, 1])
    np.savez(path, x_train=x, y_train=y, x_test=x[:2], y_test=y[:2], who=np.array([7, 7, 3, 3]))
    data = load(DataSettings(name=str(path), client_column="who", image_size=10))
    assert (data.name, data.shape) == ("set", (1, 10, 10))
    assert data.group_names == ("3", "7")
    assert "no array 'nobody'" in refused(DataSettings(name=str(path), client_column="nobody"))
    np.savez(path, x_train=x)
    assert "no array 'y_train'" in refused(DataSettings(name=str(path)))


def test_an_npz_file_with_objects_is_never_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (pytest.fail, ("unpickled",))

    path = tmp_path / "trap.npz"
    trap = np.array([Trap()], dtype=object)
    np.savez(path, x_train=trap, y_train=trap, x_test=trap, y_test=trap)
    assert "holds Python objects" in refused(DataSettings(name=str(path)))
    path.write_bytes(b"PK rubbish")
    assert "not a readable .npz" in refused(DataSettings(name=str(path)))
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    assert "single array" in refused(DataSettings(name=str(path)))
    (tmp_path / "x.doc").write_text("1,2")
    assert "not a .csv, .tsv, .parquet, .npz or .txt" in refused(
        DataSettings(name=str(tmp_path / "x.doc"))
    )


def test_float_npz_is_used_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "float.npz"
    x = np.linspace(-1, 1, 8).reshape(2, 4)
    np.savez(path, x_train=x, y_train=[0, 1], x_test=x, y_test=[0, 1])
    data = load(DataSettings(name=str(path)))
    assert data.scaling.mean == ()
    assert torch.equal(data.scaling(data.train.inputs), torch.from_numpy(x).float())


def test_the_hub_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    monkeypatch.setattr("fedstill.data.hub._hub_answers", lambda: True)
    message = refused(DataSettings(name="mnist"))
    assert "pip install 'fedstill[hub]'" in message
    assert "--data-dir DIR" in message


def test_a_hub_failure_is_one_line(fake_hub: Hub) -> None:
    message = refused(DataSettings(name="hub:nobody/there"))
    assert "no route to host" in message
    assert "--data-dir DIR" in message
    assert "DIR/there/train.parquet" in message


@pytest.mark.parametrize("files", [True, False])
def test_a_hub_data_set_decodes_like_a_file(fake_hub: Hub, small_set: Path, files: bool) -> None:
    splits = {"train": "train.parquet", "validation": "test.parquet"}
    fake_hub["some/set", None] = {
        split: Stored(small_set / file, files=files) for split, file in splits.items()
    }
    from_hub = load(DataSettings(name="hub:some/set"))
    from_file = load(DataSettings(name=str(small_set)))
    assert from_hub.name == "some/set"
    assert from_hub.fingerprint == from_file.fingerprint
    assert torch.equal(from_hub.test.inputs, from_file.test.inputs)
    del fake_hub["some/set", None]["validation"]
    with pytest.warns(UserWarning, match="no test split; 20% of every class"):
        held_out = load(DataSettings(name="hub:some/set"))
    assert (len(held_out.train), len(held_out.test)) == (9, 3)


def test_whether_the_hub_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that refuses is there; a name that is looked up for ever, or a closed port, not."""
    from fedstill.data import hub

    class Refusing(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(403)

        def log_message(self, *_: object) -> None:
            """Silent."""

    monkeypatch.setenv("NO_PROXY", "*")
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        assert hub._hub_answers(patience=60)
        thread.join()
    assert not hub._hub_answers(patience=60)  # the port is closed now
    never = threading.Event()

    def wait(*_: object, **__: object) -> None:
        never.wait()
        raise OSError("no such name")

    monkeypatch.setattr(hub, "urlopen", wait)
    assert not hub._hub_answers(patience=0.01)
    never.set()


def test_palette_images_become_colour(tmp_path: Path) -> None:
    folder = tmp_path / "p" / "a"
    folder.mkdir(parents=True)
    for i in range(5):
        Image.new("P", (3, 3), i).save(folder / f"{i}.png")
    assert load(DataSettings(name=str(tmp_path / "p"))).shape == (3, 3, 3)
