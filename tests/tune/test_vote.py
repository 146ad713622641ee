import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

import fedstill
from fedstill import wire
from fedstill.config import resolve_model
from fedstill.config.registry import build_model
from fedstill.data import Records, load
from fedstill.errors import RequestError, RunError, WireError
from fedstill.models import Model
from fedstill.rng import Rng
from fedstill.runs.find import run_of
from fedstill.runs.sets import load_set
from fedstill.steps.scores import score
from fedstill.tune.objective import Judge
from fedstill.tune.space import Candidate
from fedstill.tune.training import DEFAULT_TRAINING
from fedstill.tune.vote import (
    Ballot,
    Vote,
    Voters,
    VotingClient,
    refuse_overspending,
    voters_of,
)
from fedstill.types import ClientContext, Params, Task

TABLE = {"name": "mlp", "width": 8, "depth": 1}


@pytest.fixture(scope="module")
def voters(run: Path) -> Voters:
    return voters_of(run_of(run), run, load_set(run))


def candidate(voters: Voters) -> tuple[Task, Params]:
    data = voters.built.dataset
    model = build_model(resolve_model(TABLE), data.shape, data.classes)
    return (
        Task(model, data.shape, data.classes, 1, 1, data.scaling),
        model.init(Rng(3).torch()),
    )


def test_the_tally_is_the_accuracy_on_all_records_and_every_byte_counts(
    voters: Voters,
) -> None:
    task, params = candidate(voters)
    tally = voters.vote(TABLE, task, params)
    train = voters.built.dataset.train
    everything = Records(train, torch.arange(len(train)), voters.built.dataset.scaling)
    assert tally.accuracy == pytest.approx(score(task, params, everything).accuracy)
    assert tally.count == len(train)
    ballot = Ballot(msgspec.json.encode(TABLE).decode(), params)
    down = len(wire.encode(ballot, VotingClient().download(task)))
    assert tally.down_bytes == 3 * down
    schema, codec = VotingClient().upload(task), voters.built.experiment.wire.up
    up = [len(wire.encode(Vote(right, 479), schema, codec)) for right in (1, 10, 100)]
    assert 3 * min(up) <= tally.up_bytes <= 3 * max(up) + 3


def test_a_vote_is_two_numbers_and_nothing_else(voters: Voters) -> None:
    task, params = candidate(voters)
    context = ClientContext(
        task, 1, 0, Rng(0), data=voters.built.runner.records.of(0, voters.built.task)
    )
    vote, state = VotingClient().client(context, Ballot("{}", params), None)
    assert state is None
    assert vars(vote).keys() == {"right", "count"}
    schema = VotingClient().upload(task)
    assert wire.decode(wire.encode(vote, schema), schema) == vote
    with pytest.raises(WireError):
        wire.encode(Vote(-1, 3), schema)
    with pytest.raises(WireError):
        wire.encode(Vote(0, 0), schema)


def test_the_judge_counts_the_votes(run: Path, voters: Voters) -> None:
    judge = Judge(load_set(run), repeats=2, voters=voters)
    verdict = judge.judge(
        Candidate(TABLE, replace(DEFAULT_TRAINING, learning_rate=0.05, epochs=2)), lambda *_: True
    )
    assert verdict is not None
    task, params = candidate(voters)
    single = voters.vote(TABLE, task, params)
    assert verdict.down_bytes == 2 * single.down_bytes
    assert verdict.value != verdict.held_out


def test_what_diverged_is_not_put_to_the_vote(run: Path, voters: Voters) -> None:
    judge = Judge(load_set(run), voters=voters)
    broken = Candidate(TABLE, replace(DEFAULT_TRAINING, learning_rate=1e30, epochs=3))
    verdict = judge.judge(broken, lambda *_: True)
    assert verdict is not None
    assert (verdict.value, verdict.up_bytes) == (0.0, 0)


def test_without_clients_there_is_no_vote(run: Path, tmp_path: Path) -> None:
    alone = tmp_path / "set.safetensors"
    shutil.copy(run / "synthetic" / "round-0001.safetensors", alone)
    with pytest.raises(RequestError, match="is not in a run folder"):
        voters_of(run_of(alone), alone, load_set(alone))


@pytest.fixture(scope="module")
def private_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two accesses per round and client, one round; the budget has room for more."""
    folder = tmp_path_factory.mktemp("private") / "run"
    small_run(
        {
            "method": {"name": "feddm", "iterations": 2, "images_per_class": 2, "server_epochs": 2},
            "privacy": {"epsilon": 40.0, "sigma": 0.8, "sampling_rate": 0.5, "reproducible": True},
        },
        folder,
    )
    return folder


def small_run(config: dict[str, Any], folder: Path) -> None:
    shared = {"clients": 3, "rounds": 1, "partition": "iid", "engine": {"workers": 1}}
    model = {"name": "convnet-small", "width": 4}
    fedstill.run(config={**shared, "model": model, **config}, out=folder)


def copied(run: Path, to: Path) -> Voters:
    shutil.copytree(run, to)
    return voters_of(run_of(to), to, load_set(to))


def test_a_private_vote_is_a_noisy_sum_over_a_sample(private_run: Path, tmp_path: Path) -> None:
    voters = copied(private_run, tmp_path / "run")
    plan, folder = voters.built.plan, voters.built.ledgers
    assert plan is not None
    assert folder is not None
    before, left, spent = plan.ledger(folder, 0).count, voters.left, voters.epsilon
    assert before == 2
    task, params = candidate(voters)
    tally = voters.vote(TABLE, task, params)
    # One access per client, counted in the run's ledgers, with round 0 and a clip of 1.
    assert [plan.ledger(folder, client).count for client in range(3)] == [3, 3, 3]
    last = msgspec.json.decode((folder / "client-00000.jsonl").read_bytes().splitlines()[-1])
    assert (last["round"], last["clip"], last["q"]) == (0, 1.0, 0.5)
    assert voters.left == left - 1
    assert voters.epsilon is not None
    assert spent is not None
    assert voters.epsilon > spent
    # The true number of right answers, up to the sample's draw and the noise.
    train = voters.built.dataset.train
    everything = Records(train, torch.arange(len(train)), voters.built.dataset.scaling)
    right = score(task, params, everything).accuracy
    assert tally.count == pytest.approx(0.5 * 3 * (1438 // 3))
    assert tally.accuracy == pytest.approx(right, abs=0.05)
    assert tally.right != round(tally.right)  # no client sends an exact count


def test_votes_never_pass_the_budget(private_run: Path, tmp_path: Path) -> None:
    voters = copied(private_run, tmp_path / "run")
    assert 1 < voters.left < 1000
    refuse_overspending(voters, int(voters.left))
    with pytest.raises(RequestError, match=r"leaves .*--objective holdout"):
        refuse_overspending(voters, int(voters.left) + 1)
    plan, folder = voters.built.plan, voters.built.ledgers
    assert plan is not None
    assert folder is not None
    ledger = plan.ledger(folder, 1)
    while ledger.room:
        ledger.open(0, 1.0)
    task, params = candidate(voters)
    with pytest.raises(RunError, match="client 1: the privacy budget"):
        voters.vote(TABLE, task, params)


def test_a_search_by_private_votes_says_what_it_cost(private_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    shutil.copytree(private_run, tmp_path / "run")
    found = fedstill.tune(
        tmp_path / "run",
        trials=2,
        search="hyper",
        objective="vote",
        pruner="none",
        workers=2,  # the ledgers are locked: two votes at once are two accesses
        space={"training": {"epochs": 1}},
        out=tmp_path / "tuned",
    )
    counted = voters_of(run_of(tmp_path / "run"), tmp_path / "run", load_set(tmp_path / "run"))
    assert counted.epsilon == found.epsilon
    assert found.epsilon is not None
    assert found.summary["epsilon"] == found.epsilon
    assert found.epsilon < 40
    assert "Votes were private" in (tmp_path / "tuned" / "tune.html").read_text()


def test_voters_have_the_wrong_labels_that_the_run_had(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    method = {"name": "real", "images_per_class": 2, "server_epochs": 1}
    small_run({"method": method, "corrupt": {"share": 1.0}}, folder)
    voters = voters_of(run_of(folder), folder, load_set(folder))
    clean = load(voters.built.experiment.data).train.labels
    assert not bool((voters.built.dataset.train.labels == clean).any())


def test_other_records_than_the_run_s_are_refused(run: Path, tmp_path: Path) -> None:
    moved = tmp_path / "run"
    shutil.copytree(run, moved)
    summary = (moved / "summary.json").read_text()
    digest = msgspec.json.decode(summary)["data_sha256"]
    (moved / "summary.json").write_text(summary.replace(digest, "0" * 64))
    with pytest.raises(RequestError, match="the data are not those"):
        voters_of(run_of(moved), moved, load_set(moved))


class Net(nn.Module):
    """A network that nobody can build from its name: it takes no shape and no classes."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(x.flatten(1))
        return logits


def test_the_clients_of_a_run_with_a_model_object_can_vote(tmp_path: Path) -> None:
    """A candidate is not the run's own network, which need not be built."""
    out = tmp_path / "run"
    fedstill.run("real", model=Net(), rounds=1, clients=3, workers=1, out=out)
    found = voters_of(run_of(out), out, load_set(out))
    task, params = candidate(found)
    assert found.vote(TABLE, task, params).count == len(found.built.dataset.train)


class Mixing(nn.Module):
    """A candidate whose output for a record depends on the others of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last((x - x.mean(0)).flatten(1))
        return logits


def test_a_candidate_that_mixes_records_gets_no_private_vote(
    private_run: Path, tmp_path: Path
) -> None:
    voters = copied(private_run, tmp_path / "run")
    task = replace(candidate(voters)[0], model=Model.from_module(Mixing()))
    before = voters.left
    with pytest.raises(RequestError, match="depends on the other records"):
        voters.vote(TABLE, task, task.model.init(torch.Generator()))
    assert voters.left == before
