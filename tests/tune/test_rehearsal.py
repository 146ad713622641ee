"""FedAvg among clients that hold parts of a set, and the search with it on a DistDD set."""

import re
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import fedstill
from fedstill.cli import app
from fedstill.errors import RequestError
from fedstill.models import MLP
from fedstill.records import SERVER, SyntheticSet
from fedstill.rng import Rng
from fedstill.runs.find import run_of
from fedstill.runs.place import set_file
from fedstill.runs.sets import load_set
from fedstill.scaling import Scaling
from fedstill.steps.fit import fit
from fedstill.steps.training import Training
from fedstill.tune.objective import Judge
from fedstill.tune.rehearsal import owners_of, rehearse
from fedstill.tune.space import Candidate, Federated
from fedstill.types import Task
from tests.methods.small import SMALL

TASK = Task(MLP((4,), 3, width=5, depth=1), (4,), 3, 1, 1, Scaling((), ()))
SET = SyntheticSet(torch.randn(6, 4, generator=Rng(1).torch()), torch.arange(6) % 3)
TRAINING = Training(0.3, 0.5, batch_size=2, epochs=4)


def candidate(local_epochs: int) -> Candidate:
    return Candidate({"name": "mlp"}, TRAINING, Federated(local_epochs))


@pytest.fixture(scope="module")
def distdd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose set is the server's."""
    folder = tmp_path_factory.mktemp("distdd") / "run"
    settings = {f"method.{key}": value for key, value in SMALL["distdd"].items()}
    settings |= {"method.images_per_class": 4, "model.width": 4}
    fedstill.run("distdd", clients=3, rounds=1, workers=1, out=folder, set=settings)
    return folder


def test_rounds_by_the_obvious_loop() -> None:
    owners = torch.tensor([7, 7, 0, 7, 0, 7])  # four images and two
    found = list(rehearse(TASK, SET, owners, candidate(2), Rng(0)))
    assert len(found) == 2  # rounds of two local epochs make four
    weights = TASK.model.init(Rng(0).at("init").torch())
    for number in range(2):
        trained = {}
        for client in (0, 7):
            rows = (owners == client).nonzero().flatten()
            stream = Rng(0).at("round", number).at("client", client)
            trained[client] = fit(
                TASK, weights, SET.images[rows], SET.labels[rows], stream,
                replace(TRAINING, epochs=2),
            )  # fmt: skip
        weights = {k: trained[0][k] * 2 / 6 + trained[7][k] * 4 / 6 for k in weights}
        for name, weight in weights.items():
            assert torch.allclose(found[number][name], weight, atol=1e-6)


def test_more_local_epochs_than_epochs_are_one_round() -> None:
    assert candidate(5).reports == 1
    assert len(list(rehearse(TASK, SET, torch.zeros(6), candidate(5), Rng(0)))) == 1


def test_one_client_in_full_batches_trains_in_one_place() -> None:
    """With a single owner the average is its own weights."""
    alone = replace(candidate(4), training=replace(TRAINING, batch_size=6))
    (params,) = rehearse(TASK, SET, torch.zeros(6, dtype=torch.int32), alone, Rng(0))
    start = TASK.model.init(Rng(0).at("init").torch())
    expected = fit(TASK, start, SET.images, SET.labels, Rng(9), alone.training)
    for name, weight in expected.items():
        assert torch.allclose(params[name], weight, atol=1e-6)


def test_a_clients_set_keeps_its_owners(run: Path) -> None:
    stored = load_set(run)
    assert torch.equal(owners_of(stored, None), stored.clients)


def test_the_servers_set_is_partitioned_as_the_records_were(distdd: Path) -> None:
    stored = load_set(distdd)
    assert stored.clients.unique().tolist() == [SERVER]
    owners = owners_of(stored, run_of(distdd))
    assert len(owners) == len(stored)
    assert set(owners.tolist()) <= {0, 1, 2}
    assert len(owners.unique()) > 1
    assert torch.equal(owners, owners_of(stored, run_of(distdd)))
    with pytest.raises(RequestError, match="give the run folder"):
        owners_of(stored, None)


def changed(run: Path, folder: Path, pattern: str, line: str) -> Path:
    """A copy of the run with one line of its configuration replaced."""
    shutil.copytree(run, folder)
    config = folder / "config.toml"
    text, number = re.subn(f"^{pattern}$", line, config.read_text(), flags=re.M)
    assert number == 1
    config.write_text(text)
    return folder


def test_a_run_on_nodes_has_no_rule_for_the_servers_set(distdd: Path, tmp_path: Path) -> None:
    run = changed(distdd, tmp_path / "run", 'partition = ".*"', 'partition = "nodes"')
    with pytest.raises(RequestError, match="the nodes held their own records"):
        owners_of(load_set(run), run_of(run))


def test_a_run_that_names_no_number_of_clients_has_the_default(
    distdd: Path, tmp_path: Path
) -> None:
    run = changed(distdd, tmp_path / "run", "clients = 3", "")
    assert int(owners_of(load_set(run), run_of(run)).max()) > 2


def test_a_judge_trains_among_the_owners(distdd: Path) -> None:
    stored = load_set(distdd)
    judge = Judge(stored, owners=owners_of(stored, run_of(distdd)))
    table = {"name": "mlp", "width": 8, "depth": 1}
    trained = replace(TRAINING, epochs=6)
    epochs: list[int] = []

    def go_on(epoch: int, accuracy: float) -> bool:
        epochs.append(epoch)
        return True

    assert judge.judge(Candidate(table, trained, Federated(2)), go_on) is not None
    assert epochs == [1, 2, 3]


def test_a_distdd_set_is_searched_and_local_epochs_and_optimiser_reach_the_winner(
    distdd: Path, tmp_path: Path
) -> None:
    space = {
        "training": {"epochs": 4, "optimiser": "adam", "learning_rate": [0.01, 0.03]},
        "federated": {"local_epochs": [2, 4]},
    }
    done = fedstill.tune(
        distdd, trials=3, search="hyper", model="mlp", federated=True, space=space,
        pruner="none", out=tmp_path / "tuned",
    )  # fmt: skip
    assert done.trials["complete"] == 3
    assert done.up_bytes == done.down_bytes == 0
    found = done.winner.candidate
    assert found.federated is not None
    assert found.federated.local_epochs in (2, 4)
    method = tomllib.loads((tmp_path / "tuned" / "winner.toml").read_text())["method"]
    assert method == {
        "name": "fedavg",
        "learning_rate": found.training.learning_rate,
        "momentum": found.training.momentum,
        "batch_size": found.training.batch_size,
        "optimiser": "adam",
        "local_epochs": found.federated.local_epochs,
    }
    arguments = ["run", "--config", str(tmp_path / "tuned" / "winner.toml"), "fedavg"]
    arguments += ["--rounds", "1", "--workers", "1", "--out", str(tmp_path / "last")]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    used = tomllib.loads((tmp_path / "last" / "config.toml").read_text())
    assert used["method"]["optimiser"] == "adam"
    assert used["method"]["local_epochs"] == found.federated.local_epochs
    assert used["clients"] == 3


@pytest.mark.parametrize(("search", "opened"), [("hyper", True), ("architecture", False)])
def test_what_a_rehearsal_searches(distdd: Path, tmp_path: Path, search: str, opened: bool) -> None:
    done = fedstill.tune(
        distdd, trials=1, search=search, federated=True, out=tmp_path / "tuned",
        space={"training": {"epochs": 2}, "model": {"name": "mlp"}} if not opened else
        {"training": {"epochs": 2}},
    )  # fmt: skip
    training = done.winner.candidate.training
    assert (training.schedule, training.augment) == ("constant", "none")  # as FedAvg's clients
    assert ("local_epochs" in done.config["method"]) == opened


def test_a_wrong_number_of_local_epochs_is_refused(distdd: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"federated\.local_epochs"):
        fedstill.tune(
            distdd, federated=True, out=tmp_path / "t", space={"federated": {"local_epochs": 0}}
        )
    with pytest.raises(RequestError, match=r"federated\.local_epochs: no such setting"):
        fedstill.tune(distdd, out=tmp_path / "t", space={"federated": {"local_epochs": 2}})
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes(set_file(distdd).read_bytes())
    with pytest.raises(RequestError, match="give the run folder"):
        fedstill.tune(alone, federated=True, out=tmp_path / "t")


@pytest.mark.slow
def test_workers_rehearse_too(distdd: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "trials": 2,
        "search": "hyper",
        "federated": True,
        "sampler": "random",
    }
    options |= {"space": {"training": {"epochs": 2}}, "pruner": "none"}
    alone = fedstill.tune(distdd, out=tmp_path / "one", **options)
    both = fedstill.tune(distdd, out=tmp_path / "two", workers=2, **options)
    assert {one.trial: one.value for one in both.judged} == {
        one.trial: one.value for one in alone.judged
    }
