"""A node by itself: its data, its folder, its state. None of it needs Flower."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import fedstill
from fedstill import wire
from fedstill.build import BuiltExperiment, build
from fedstill.cli import app
from fedstill.client import Work
from fedstill.config import resolve
from fedstill.data import DataSettings, load, load_node_data
from fedstill.engine.flower import supervisor
from fedstill.engine.flower.codes import CODES, Refusal
from fedstill.engine.flower.description import Description, describe, read_description
from fedstill.engine.flower.node import Node, node_for
from fedstill.engine.flower.states import States
from fedstill.engine.flower.supervisor import processes_of
from fedstill.errors import BudgetSpent, RequestError, RunError, WireError
from fedstill.types import ServerContext
from fedstill.wire import tree
from tests.waiting import FOREVER, wait_until


def make_experiment(**settings: Any) -> BuiltExperiment:
    request = {
        "method": "scaffold",
        "model": {"name": "mlp", "width": 8},
        "clients": 3,
        "engine": {"name": "flower"},
        **settings,
    }
    return build(request)


@pytest.fixture(scope="module")
def built() -> BuiltExperiment:
    return make_experiment()


def first_work(
    built: BuiltExperiment, client: int, state: bytes | None = None, round: int = 1
) -> Work:
    method, task = built.method, built.task
    context = ServerContext(task, round, built.rng.at("server"))
    message = method.broadcast(context, method.init(context))
    down = wire.encode(message, method.download(task), built.experiment.wire.down)
    return Work(round, client, down, state)


def silent(_step: int, _steps: int) -> None:
    pass


# --- descriptions --------------------------------------------------------------------------------


def test_a_description_comes_back_from_its_text(built: BuiltExperiment) -> None:
    description = describe(built)
    assert read_description(description.text) == description
    assert resolve(description.config) == built.experiment


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version": 3}', "\x00"])
def test_a_description_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(WireError, match="cannot be read"):
        read_description(text)


# --- a node's turn -------------------------------------------------------------------------------


def test_a_node_answers_as_the_local_engine_does(built: BuiltExperiment, tmp_path: Path) -> None:
    node = node_for(describe(built).text, {"partition-id": 1, "folder": str(tmp_path)})
    local = built.runner.answer(first_work(built, 1), silent)
    answer = node.answer(first_work(built, 1), silent)
    assert answer.error is None
    assert answer.message == local.message
    # The state stayed on the node; a key to it is sent, much smaller than the state.
    assert answer.state is not None
    assert local.state is not None
    assert len(answer.state) == 32 < len(local.state)
    assert States(node.folder / node.experiment).read(answer.state) == local.state
    again = node.answer(first_work(built, 1, answer.state, round=2), silent)
    assert (
        again.message
        == built.runner.answer(first_work(built, 1, local.state, round=2), silent).message
    )


def test_a_node_keeps_the_state_that_the_server_refers_to(tmp_path: Path) -> None:
    states = States(tmp_path)
    first = states.keep(b"one", None)
    states.keep(b"lost", first)  # its reply was refused: the server still refers to the first
    assert states.read(first) == b"one"
    third = states.keep(b"three", first)
    assert states.read(third) == b"three"
    assert states.read(first) == b"one"
    assert len(list(tmp_path.iterdir())) == 2
    states.keep(b"four", third)
    with pytest.raises(Refusal, match="no state"):
        states.read(first)


def test_a_damaged_or_missing_state_is_refused(built: BuiltExperiment, tmp_path: Path) -> None:
    node = node_for(describe(built).text, {"partition-id": 0, "folder": str(tmp_path)})
    answer = node.answer(first_work(built, 0), silent)
    assert answer.state is not None
    with pytest.raises(Refusal, match="no state 000000000000"):
        node.answer(first_work(built, 0, b"\x00" * 32), silent)
    (file,) = node.folder.glob("*/*.safetensors")
    file.write_bytes(b"something else")
    with pytest.raises(Refusal, match="damaged"):
        node.answer(first_work(built, 0, answer.state), silent)


def test_a_node_answers_only_for_its_client(built: BuiltExperiment, tmp_path: Path) -> None:
    node = Node(2, built, tmp_path, "experiment")
    with pytest.raises(Refusal, match="it is client 2, not 1"):
        node.answer(first_work(built, 1), silent)


def test_garbage_from_the_server_is_an_answer_with_a_reason(
    built: BuiltExperiment, tmp_path: Path
) -> None:
    answer = Node(0, built, tmp_path, "experiment").answer(Work(1, 0, b"garbage", None), silent)
    assert answer.error is not None
    assert "not a safetensors message" in answer.error


# --- node configuration ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "no partition-id"),
        ({"partition-id": "0"}, "no partition-id"),
        ({"partition-id": 3}, "clients 0 to 2"),
        ({"partition-id": -1}, "clients 0 to 2"),
        ({"partition-id": 0, "data": "/nowhere"}, "no such file"),
        ({"partition-id": 0, "epsillon": 1.0}, "no key 'epsillon'; did you mean epsilon"),
        ({"partition-id": 0, "epsilon": "much"}, "Expected `float"),
        ({"partition-id": 0, "device": "quantum"}, "device: 'quantum'"),
    ],
)
def test_a_node_that_does_not_fit_says_why(
    config: dict[str, Any], message: str, built: BuiltExperiment, tmp_path: Path
) -> None:
    with pytest.raises(Refusal, match=message) as refusal:
        node_for(describe(built).text, {"folder": str(tmp_path), **config}).introduce()
    assert refusal.value.code in CODES


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "0.0.0"}, "the server 0.0.0; install the same"),
        ({"data_sha256": "0" * 64}, "differs from the server's"),
        ({"partition_sha256": "0" * 64}, "differently from the server"),
    ],
)
def test_a_node_with_other_software_or_data_is_refused(
    change: dict[str, Any], message: str, built: BuiltExperiment
) -> None:
    description = dataclasses.replace(describe(built), **change)
    with pytest.raises(RequestError, match=message):
        node_for(description.text, {"partition-id": 0}).introduce()


def test_a_node_reads_no_path_that_the_server_names(tmp_path: Path) -> None:
    path = node_files(tmp_path)["npz"]
    arrays = dict(np.load(path))
    np.savez(path, **arrays, x_test=arrays["x_train"], y_test=arrays["y_train"])
    description = describe(make_experiment(data={"name": str(path)}, partition="iid"))
    with pytest.raises(RequestError, match="have no public name"):
        node_for(description.text, {"partition-id": 0})


def test_an_experiment_on_nodes_needs_to_know_where_their_records_are() -> None:
    built = make_experiment(partition="nodes")
    assert built.candidates == [0, 1, 2]
    with pytest.raises(RequestError, match="where are its records"):
        node_for(describe(built).text, {"partition-id": 0})


# --- a node's privacy ----------------------------------------------------------------------------


def private_experiment(**privacy: Any) -> BuiltExperiment:
    """FedSGD makes one access per round."""
    settings = {"sigma": 1.0, "sampling_rate": 0.1, **privacy}
    return make_experiment(method="fedsgd", rounds=9, privacy=settings).planned()


def test_a_nodes_ledger_is_its_own_and_outlives_experiments(tmp_path: Path) -> None:
    config = {"partition-id": 1, "folder": str(tmp_path)}
    for number, seed in enumerate((0, 1), start=1):  # another seed is another experiment
        built = make_experiment(
            method="fedsgd", seed=seed, privacy={"sigma": 1.0, "sampling_rate": 0.1}
        ).planned()
        answer = node_for(describe(built).text, config).answer(first_work(built, 1), silent)
        assert answer.error is None
        ledger = tmp_path / "client-00001" / "ledger" / "client-00001.jsonl"
        assert len(ledger.read_bytes().splitlines()) == number


def test_a_node_answers_no_more_than_its_own_budget_allows(tmp_path: Path) -> None:
    built = private_experiment(epsilon=50.0)
    one = built.plan.spent(1) if built.plan else 0.0
    config = {"partition-id": 1, "folder": str(tmp_path), "epsilon": one * 1.001}
    node = node_for(describe(built).text, config)
    assert node.answer(first_work(built, 1, round=1), silent).error is None
    with pytest.raises(BudgetSpent, match="allows 1 accesses, 1 are made"):
        node.answer(first_work(built, 1, round=2), silent)


@pytest.mark.parametrize(
    ("privacy", "config", "reason"),
    [
        (None, {}, r"the experiment has no \[privacy\]"),
        ({"delta": 1e-3}, {}, "privacy.delta is 0.001"),
        ({"delta": 1e-5}, {"delta": 1e-6}, "larger than this node's 1e-06"),
        ({"reproducible": True}, {}, "privacy.reproducible"),
        ({"classes": "declared"}, {}, "which classes they hold"),
    ],
)
def test_what_a_node_with_a_budget_rejects(
    privacy: dict[str, Any] | None, config: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    built = make_experiment(method="fedsgd") if privacy is None else private_experiment(**privacy)
    config = {"partition-id": 0, "folder": str(tmp_path), "epsilon": 5.0, **config}
    with pytest.raises(RequestError, match=reason):
        node_for(describe(built).text, config)


def test_classes_may_be_known_where_the_node_says_so(tmp_path: Path) -> None:
    built = private_experiment(classes="declared")
    config = {"partition-id": 0, "folder": str(tmp_path), "epsilon": 5.0, "classes": "declared"}
    assert node_for(describe(built).text, config).built.plan is not None


def test_no_records_without_a_plan() -> None:
    built = dataclasses.replace(private_experiment(), plan=None)
    with pytest.raises(RunError, match="no records are handed out"):
        _ = built.runner


# --- a node's own data ---------------------------------------------------------------------------


def node_files(folder: Path) -> dict[str, Path]:
    """Twelve digits of two classes, in every format that a node may have."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = load(DataSettings()).train
    rows = torch.cat([(data.labels == c).nonzero().flatten()[:6] for c in (3, 7)])
    images, labels = data.inputs[rows].numpy(), data.labels[rows].numpy()
    np.savez(folder / "own.npz", x_train=images, y_train=labels)
    encoded = []
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / "images" / str(label) / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0]).save(path)
        encoded.append({"bytes": path.read_bytes(), "path": None})
    (folder / "train" / "train").mkdir(parents=True)
    (folder / "images" / "3").rename(folder / "train" / "train" / "3")
    (folder / "images" / "7").rename(folder / "train" / "train" / "7")
    for name, column in (("numbers", labels), ("names", [str(c) for c in labels])):
        (folder / name).mkdir()
        table = pa.table({"image": encoded, "label": column})
        pq.write_table(table, folder / name / "train.parquet")
    return {
        "npz": folder / "own.npz",
        "images": folder / "train",
        "flat images": folder / "train" / "train",
        "parquet": folder / "numbers",
        "parquet of names": folder / "names",
    }


def test_a_nodes_records_in_every_form_are_the_same_records(
    built: BuiltExperiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path / "cache"))
    description = describe(make_experiment(partition="nodes"))
    answers = {}
    for form, path in node_files(tmp_path).items():
        split = load_node_data(path, DataSettings(), (1, 8, 8), description.class_names)
        assert sorted(split.labels.tolist()) == [3] * 6 + [7] * 6, form
        again = load_node_data(path, DataSettings(), (1, 8, 8), description.class_names)
        assert torch.equal(again.inputs, split.inputs)  # from the cache
        config = {"partition-id": 2, "data": str(path), "folder": str(tmp_path / form)}
        node = node_for(description.text, config)
        assert len(node.opened.runner.records.of(2, node.opened.task)) == 12
        answers[form] = node.answer(first_work(built, 2), silent)
        assert answers[form].error is None
    assert len({answer.message for answer in answers.values()}) == 1


@pytest.mark.parametrize(
    ("shape", "classes", "message"),
    [
        ((1, 9, 9), 10, r"records of shape \(1, 8, 8\), the task has \(1, 9, 9\)"),
        ((1, 8, 8), 5, "label 7 is out of range"),
    ],
)
def test_a_nodes_records_that_do_not_fit_are_refused(
    shape: tuple[int, ...], classes: int, message: str, tmp_path: Path
) -> None:
    path = node_files(tmp_path)["npz"]
    with pytest.raises(RequestError, match=message):
        load_node_data(path, DataSettings(), shape, tuple(str(i) for i in range(classes)))


TABLE = "age,sex,sick\n20,f,no\n60,m,yes\n30,f,no\n50,m,yes\n25,f,no\n55,m,yes\n"


def table_experiment(folder: Path, **settings: Any) -> BuiltExperiment:
    """What the server knows: the form of the table, from rows of its own."""
    path = folder / "server.csv"
    path.write_text(TABLE)
    data = {
        "name": str(path),
        "label_column": "sick",
        "ranges": {"age": [20, 60]},
        "categories": {"sex": ["f", "m"]},
    }
    return make_experiment(data=data, partition="nodes", **settings)


@pytest.mark.filterwarnings("ignore:.*no test split")
def test_a_node_reads_its_table_as_the_task_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path / "cache"))
    built = table_experiment(tmp_path)
    own = tmp_path / "own.csv"
    own.write_text("part,outcome,sex,age\ntrain,yes,m,60\ntrain,no,f,20\ntest,no,m,20\n")
    config = {"partition-id": 1, "folder": str(tmp_path / "node"), "data": str(own)}
    columns = {"label-column": "outcome", "split-column": "part"}
    node = node_for(describe(built).text, {**config, **columns})
    node.introduce()
    assert node.opened.dataset.train.inputs.tolist() == [[1, 0, 1], [-1, 1, 0]]
    assert node.opened.dataset.train.labels.tolist() == [1, 0]
    assert node.answer(first_work(built, 1), silent).error is None
    other = make_experiment(
        data={**dict(built.experiment.table["data"]), "ranges": {"age": [0, 100]}},
        partition="nodes",
    )
    with pytest.raises(RequestError, match="another task"):
        node_for(describe(other).text, {**config, **columns})
    with pytest.raises(RequestError, match="no column 'label'"):
        node_for(describe(built).text, config).introduce()


@pytest.mark.filterwarnings("ignore:.*no test split")
@pytest.mark.parametrize(
    "text", ["", "age,sex\n1,f\n", "age,sex,sick\nold,f,no\n", "\udcff", TABLE], ids=str
)
def test_a_private_node_whose_table_cannot_be_read_answers_with_noise(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path / "cache"))
    privacy = {"sigma": 1.0, "sampling_rate": 0.1, "public_size": 6}
    built = table_experiment(tmp_path, method="fedsgd", privacy=privacy).planned()
    own = tmp_path / "own.csv"
    own.write_bytes(text.encode("utf-8", "surrogateescape"))
    config = {
        "partition-id": 1,
        "folder": str(tmp_path / "node"),
        "data": str(own),
        "label-column": "sick",
    }
    node = node_for(describe(built).text, config)
    if text == TABLE:
        answer = node.answer(first_work(built, 1), silent)
        assert len(node.opened.dataset.train) == 6
    else:
        with pytest.warns(UserWarning, match=r"answers with noise alone|do not fit the task"):
            answer = node.answer(first_work(built, 1), silent)
        assert len(node.opened.dataset.train) == 0
    assert answer.error is None
    assert answer.message


def test_a_class_that_the_task_does_not_know_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path / "cache"))
    files = node_files(tmp_path)
    for form in ("images", "parquet of names"):
        with pytest.raises(RequestError, match="no class '3' in the task"):
            load_node_data(files[form], DataSettings(), (1, 8, 8), ("cat", "dog"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match=r"neither train\.parquet, nor one folder of images"):
        load_node_data(tmp_path / "empty", DataSettings(), (1, 8, 8), ("cat", "dog"))


# --- what is refused on one machine --------------------------------------------------------------


def test_without_flower_one_line_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"pip install 'fedstill\[flower\]'"):
        fedstill.run("fedavg", engine="flower", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    for arguments in (["init", str(tmp_path / "app")], ["check", str(tmp_path)], ["key", "k"]):
        result = CliRunner().invoke(app, ["deploy", *arguments])
        assert "pip install 'fedstill[flower]'" in str(result.exception)
    assert not (tmp_path / "app").exists()


def test_objects_cannot_go_to_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    with pytest.raises(RequestError, match="by name"):
        fedstill.run(fedstill.METHODS["fedavg"](), engine="flower")


def test_records_on_nodes_are_not_for_one_machine() -> None:
    with pytest.raises(RequestError, match="fedstill deploy init"):
        fedstill.run("fedavg", partition="nodes", clients=3)
    with pytest.raises(RequestError, match="number of clients is missing"):
        make_experiment(partition="nodes", clients=None)
    with pytest.raises(RequestError, match="centralised"):
        build({"method": "central", "partition": "nodes", "clients": 2})


# --- the supervisor ------------------------------------------------------------------------------


def test_the_supervisor_ends_everything_that_was_started(tmp_path: Path) -> None:
    """Even a process that left its group, once the supervisor's parent is gone."""
    folder = tmp_path / "simulation"
    (folder / "home").mkdir(parents=True)
    detached = (
        "import subprocess, sys, time; "
        "subprocess.Popen(['sleep', '300'], start_new_session=True); time.sleep(300)"
    )
    commands = [{"words": [sys.executable, "-c", detached]}]
    (folder / "commands.json").write_text(json.dumps(commands))
    process = subprocess.Popen(
        [sys.executable, "-P", supervisor.__file__, str(folder)],
        env={**os.environ, "FLWR_HOME": str(folder / "home")},
        stdin=subprocess.PIPE,
    )
    # The supervisor, its command, and the detached one.
    wait_until(lambda: len(processes_of(folder)) >= 3, "the start of three processes")
    assert process.stdin is not None
    process.stdin.close()
    process.wait(FOREVER)
    assert processes_of(folder) == []
    assert not folder.exists()


def test_descriptions_hold_no_records(built: BuiltExperiment) -> None:
    """Public facts only: as long as the settings, whatever the size of the data."""
    assert len(describe(built).text) < 4000
    fields = {field.name for field in dataclasses.fields(Description)}
    assert tree.flatten(dataclasses.asdict(describe(built)))[0] == {}
    assert "data_sha256" in fields
