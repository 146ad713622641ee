"""A node against a hostile server: what it learns, reads, runs and may cost. None needs Flower."""

import dataclasses
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedstill import wire
from fedstill.build import BuiltExperiment, build
from fedstill.client import Answer, ClientRunner, Work
from fedstill.data import DataSettings, load
from fedstill.engine.flower.codes import CODES, explained
from fedstill.engine.flower.description import Description, describe
from fedstill.engine.flower.turn import introduction, turn
from fedstill.types import ServerContext

PRIVATE = {"sigma": 1.0, "sampling_rate": 0.5, "epsilon": 1000.0, "public_size": 12}


def experiment(privacy: dict[str, Any] | None = None, **settings: Any) -> BuiltExperiment:
    request = {
        "method": "fedsgd",
        "model": {"name": "mlp", "width": 8},
        "clients": 3,
        "partition": "nodes",
        "engine": {"name": "flower"},
        **({"privacy": privacy} if privacy else {}),
        **settings,
    }
    return build(request).planned()


def work(built: BuiltExperiment, round: int = 1) -> Work:
    method, task = built.method, built.task
    context = ServerContext(task, round, built.rng.at("server"))
    message = method.broadcast(context, method.init(context))
    down = wire.encode(message, method.download(task), built.experiment.wire.down)
    return Work(round, 0, down, None)


def ask(built: BuiltExperiment, node: dict[str, Any], **change: Any) -> Answer:
    """The node's answer to a description with these fields changed."""
    text = dataclasses.replace(describe(built), **change).text
    return turn(lambda: work(built), lambda: text, {"partition-id": 0, **node})


def with_config(built: BuiltExperiment, **sections: Any) -> dict[str, Any]:
    """A configuration as a hostile server would send it."""
    return {**describe(built).config, **sections}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path / "cache"))


def digits() -> tuple[Any, Any]:
    data = load(DataSettings()).train
    rows = torch.cat([(data.labels == c).nonzero().flatten()[:6] for c in (3, 7)])
    return data.inputs[rows].numpy(), data.labels[rows].numpy()


def image_folder(folder: Path) -> Path:
    for number, (image, label) in enumerate(zip(*digits(), strict=True)):
        path = folder / str(label) / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0]).save(path)
    return folder


def patients(folder: Path) -> Path:
    """A table with a column that no server should ever see."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    images = image_folder(folder / "images")
    files = sorted(images.rglob("*.png"))
    table = pa.table(
        {
            "image": [{"bytes": f.read_bytes(), "path": None} for f in files],
            "label": [int(f.parent.name) for f in files],
            "patient": [f"Jane Doe {i}" for i in range(len(files))],
        }
    )
    (folder / "table").mkdir()
    pq.write_table(table, folder / "table" / "train.parquet")
    return folder / "table"


# --- errors carry no records ---------------------------------------------------------------------


def test_the_server_chooses_no_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It could read a column value by value from the errors about labels that are none."""
    built, config = experiment(), {"data": str(patients(tmp_path)), "folder": str(tmp_path / "n")}
    hostile = with_config(built, data={"name": "digits", "label_column": "patient"})
    answer = ask(built, config, config=hostile)
    assert answer.error is None  # the node read its own column
    own = {**config, "label-column": "patient", "folder": str(tmp_path / "other")}
    answer = ask(built, own)
    assert answer.error == "records"
    assert answer.traceback is None
    assert "Jane Doe" in capsys.readouterr().err  # the node's own log has the words


def test_a_failure_is_a_code_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spill(*_: object) -> None:
        raise ValueError("a record of patient 4711")

    monkeypatch.setattr(ClientRunner, "context", spill)
    built = experiment()
    config = {"data": str(image_folder(tmp_path / "data")), "folder": str(tmp_path / "node")}
    answer = ask(built, config)
    assert (answer.error, answer.traceback, answer.message) == ("failed", None, b"")
    assert "patient 4711" in capsys.readouterr().err
    assert "4711" not in str(explained(answer.error))
    assert explained("anything else") == "anything else"


@pytest.mark.parametrize("spoil", ["label", "image", "nothing"])
def test_a_record_that_does_not_fit_does_not_count_in_a_private_run(
    spoil: str, tmp_path: Path
) -> None:
    """Neither an error nor its absence tells that it is there."""
    folder = image_folder(tmp_path / "data")
    if spoil == "label":
        (folder / "3").rename(folder / "a class of its own")
    elif spoil == "image":
        for file in folder.rglob("*.png"):
            file.write_bytes(b"no image")
    else:
        for file in folder.rglob("*.png"):
            file.unlink()
    built = experiment(PRIVATE)
    config = {"data": str(folder), "folder": str(tmp_path / "node")}
    answer = ask(built, config)
    whole = ask(built, {**config, "data": str(image_folder(tmp_path / "whole"))})
    assert answer.error is whole.error is None
    assert len(answer.message) == len(whole.message)
    reply = wire.decode(answer.message, built.method.upload(built.task), "float32")
    assert all(bool(torch.isfinite(v).all()) and bool(v.any()) for v in reply.update.values())


@pytest.mark.parametrize("form", ["npz", "parquet"])
def test_tables_and_arrays_with_odd_records(form: str, tmp_path: Path) -> None:
    images, labels = digits()
    built = experiment(PRIVATE)
    if form == "npz":
        labels[0] = 99
        images = images.astype(np.float32)
        images[1] = np.nan
        path = tmp_path / "own.npz"
        np.savez(path, x_train=images, y_train=labels)
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = patients(tmp_path)
        table = pq.read_table(path / "train.parquet")
        column = [None, 99, *table["label"].to_pylist()[2:]]
        spoilt = table.set_column(1, "label", pa.array(column))
        pq.write_table(spoilt, path / "train.parquet")
    from fedstill.engine.flower.node import node_for

    config = {"partition-id": 0, "data": str(path), "folder": str(tmp_path / "node")}
    with pytest.warns(UserWarning, match="2 of 12 records do not fit the task"):
        opened = (node := node_for(describe(built).text, config)).opened
    assert len(opened.dataset.train) == 10
    assert node.answer(work(built), lambda *_: None).error is None


def test_the_budget_is_charged_before_records_are_opened(tmp_path: Path) -> None:
    built = experiment(PRIVATE)
    plan = built.plan
    assert plan is not None
    folder, damaged = tmp_path / "node", tmp_path / "own.npz"
    damaged.write_bytes(b"no archive")
    config = {"data": str(damaged), "folder": str(folder)}
    said = introduction(lambda: describe(built).text, {"partition-id": 0, **config})
    assert said.error is None  # the records are not looked at
    assert not list(folder.rglob("*.jsonl"))
    answer = ask(built, config)  # and whatever is in them, there is an answer
    assert answer.error is None
    assert answer.message
    (ledger,) = folder.rglob("*.jsonl")
    assert len(ledger.read_bytes().splitlines()) == 1
    little = {**config, "epsilon": plan.spent(1) * 1.001}
    assert ask(built, little).error == "budget"
    assert ask(built, little).spent


@pytest.mark.parametrize("privacy", [None, PRIVATE])
def test_a_path_that_is_not_there_is_refused_before_anything_is_counted(
    privacy: dict[str, Any] | None, tmp_path: Path
) -> None:
    built = experiment(privacy)
    config = {"data": str(tmp_path / "not there"), "folder": str(tmp_path / "node")}
    said = introduction(lambda: describe(built).text, {"partition-id": 0, **config})
    assert said.error == ask(built, config).error == "records"
    assert not (tmp_path / "node").exists()


def test_a_dangling_link_among_the_images_does_not_count(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "data")
    (folder / "3" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    config = {"data": str(folder), "folder": str(tmp_path / "node")}
    assert ask(experiment(PRIVATE), config).error is None


def test_the_server_cannot_make_a_node_decode_at_other_sizes(tmp_path: Path) -> None:
    built = experiment()
    config = {"data": str(image_folder(tmp_path / "data")), "folder": str(tmp_path / "node")}
    assert ask(built, config).error is None
    before = sorted((tmp_path / "cache").iterdir())
    hostile = with_config(built, data={"name": "digits", "image_size": 300})
    assert ask(built, config, config=hostile).error is None
    assert sorted((tmp_path / "cache").iterdir()) == before


def test_four_turns_at_once_keep_within_the_budget(tmp_path: Path) -> None:
    built = experiment(PRIVATE)
    plan = built.plan
    assert plan is not None
    config = {
        "data": str(image_folder(tmp_path / "data")),
        "folder": str(tmp_path / "node"),
        "epsilon": plan.spent(2) * 1.001,
    }
    answers: list[Answer] = []
    start = threading.Barrier(4)

    def take() -> None:
        start.wait()
        answers.append(ask(built, config))

    turns = [threading.Thread(target=take) for _ in range(4)]
    for thread in turns:
        thread.start()
    for thread in turns:
        thread.join()
    assert sorted(str(a.error) for a in answers) == ["None", "None", "budget", "budget"]


# --- files and code are the node's own choice ----------------------------------------------------


@pytest.mark.parametrize("name", ["../../elsewhere", "..", "a" * 63, "A" * 64, "a" * 64 + "\n", ""])
def test_a_fingerprint_is_not_a_path(name: str, tmp_path: Path) -> None:
    built = experiment()
    config = {"data": str(image_folder(tmp_path / "data")), "folder": str(tmp_path / "node")}
    assert ask(built, config, experiment_sha256=name).error == "message"
    assert not (tmp_path / "node").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"clients": 0},
        {"clients": 2**40},
        {"shape": (1, 0, 8)},
        {"shape": (1,) * 9},
        {"class_names": ()},
        {"mean": (0.1,) * 99},
        {"config": {"method": {"name": "fedsgd", "no such setting": 1}}},
        {"config": {"method": 3}},
        {"config": {}},
    ],
)
def test_a_description_that_breaks_its_schema_is_refused(
    change: dict[str, Any], tmp_path: Path
) -> None:
    config = {"data": str(image_folder(tmp_path / "data")), "folder": str(tmp_path / "node")}
    assert ask(experiment(), config, **change).error in ("message", "request")
    assert not (tmp_path / "node").exists()


def test_no_file_that_the_server_names_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "passwd"
    secret.write_text("root:x:0:0\n")
    opened: list[str] = []
    real_open = Path.open

    def watched(self: Path, *arguments: Any, **options: Any) -> Any:
        opened.append(str(self))
        return real_open(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", watched)
    built = experiment()
    config = {"data": str(image_folder(tmp_path / "data")), "folder": str(tmp_path / "node")}
    for data in (
        {"name": "shakespeare", "vocabulary": str(secret)},
        {"name": str(secret)},
        {"name": "digits", "dir": str(tmp_path)},
        str(secret),
    ):
        ask(built, config, config=with_config(built, data=data))
        trial = with_config(built, data=data, partition="iid")
        own = {"folder": str(tmp_path / "node"), "data-dir": str(tmp_path / "nothing")}
        ask(built, own, config=trial)
    assert not [path for path in opened if path == str(secret)]
    assert "root:x" not in capsys.readouterr().err


def test_no_code_that_the_server_names_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_code.py").write_text(
        "from pathlib import Path\n"
        "Path(__file__).with_suffix('.ran').touch()\n"
        "from fedstill.models import MLP\n"
        "def make(shape, classes): return MLP(shape, classes, width=8)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    built = experiment()
    config = {"data": str(image_folder(tmp_path / "data")), "folder": str(tmp_path / "node")}
    name = "their_code:make"
    for section in ({"model": {"name": name}}, {"model": name}, {"method": {"name": name}}):
        assert ask(built, config, config=with_config(built, **section)).error == "request"
    assert not (tmp_path / "their_code.ran").exists()
    allowed = {**config, "allow": f"other:thing, {name}"}
    assert ask(built, allowed, config=with_config(built, model={"name": name})).error is None
    assert (tmp_path / "their_code.ran").exists()


def test_a_node_is_bound_to_its_first_task(tmp_path: Path) -> None:
    built = experiment()
    config = {"data": str(image_folder(tmp_path / "data")), "folder": str(tmp_path / "node")}
    assert ask(built, config).error is None
    names = describe(built).class_names
    other = (*names[:3], names[7], *names[4:7], names[3], *names[8:])
    assert ask(built, config, class_names=other).error == "task"
    assert ask(built, config, mean=(0.4,)).error == "task"
    (tmp_path / "node" / "client-00000" / "task.json").unlink()
    assert ask(built, config, class_names=other).error is None


def test_a_server_cannot_fill_the_disk_with_states(tmp_path: Path) -> None:
    built = experiment(method="scaffold")
    config = {"data": str(image_folder(tmp_path / "data")), "folder": str(tmp_path / "node")}
    for number in range(20):
        assert ask(built, config, experiment_sha256=f"{number:016x}" + "0" * 48).error is None
    assert len(list((tmp_path / "node").rglob("*.safetensors"))) == 16


# --- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "change"),
    [
        ({}, lambda d: {"shape": (1, 2000, 2000)}),
        ({"max-image-size": 7}, lambda d: {}),
        ({}, lambda d: {"clients": 2_000_000}),
        ({"max-clients": 2}, lambda d: {}),
        ({}, lambda d: {"config": {**d.config, "engine": {"name": "flower", "threads": 500}}}),
        ({"max-threads": 1}, lambda d: {"config": {**d.config, "engine": {"threads": 2}}}),
        ({}, lambda d: {"config": {**d.config, "method": {"name": "feddm", "iterations": 10**6}}}),
        ({}, lambda d: {"config": {**d.config, "rounds": 10**15}}),
        ({}, lambda d: {"config": {**d.config, "rounds": 99_999, "clients": 99_999}}),
        ({"max-iterations": 9}, lambda d: {"config": {**d.config, "method": {"name": "feddm"}}}),
    ],
)
def test_what_would_cost_too_much_is_refused(
    limits: dict[str, Any], change: Callable[[Description], dict[str, Any]], tmp_path: Path
) -> None:
    built = experiment()
    config = {"data": str(image_folder(tmp_path / "data")), "folder": str(tmp_path / "node")}
    answer = ask(built, {**config, **limits}, **change(describe(built)))
    assert answer.error == "limit"


def test_a_turn_that_takes_too_long_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = threading.Event()

    def hang(*_: object) -> Answer:
        end.wait()
        return Answer(0)

    monkeypatch.setattr(ClientRunner, "answer", hang)
    config = {"data": str(image_folder(tmp_path / "data")), "folder": str(tmp_path / "node")}
    try:
        assert ask(experiment(), {**config, "max-seconds": 0.05}).error == "limit"
    finally:
        end.set()


_HUNGRY = """
import torch
from fedstill.client import Answer, ClientRunner
from fedstill.engine.flower import turn
from fedstill.engine.flower.codes import code_of
from fedstill.engine.flower.limits import limit_memory

for most, wanted in ((2**30, 2**32), (2**33, 2**28)):
    try:
        limit_memory(most)
        torch.ones(wanted, dtype=torch.uint8)
        print("enough")
    except Exception as error:
        print(code_of(error))
"""


def test_a_turn_that_needs_too_much_memory_fails_and_the_node_stays_up() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _HUNGRY], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["limit", "enough"]


def test_every_code_is_a_sentence_for_the_server() -> None:
    for code in CODES:
        assert str(explained(code)).endswith("the node's log has the details")
