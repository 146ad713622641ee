import shutil
from pathlib import Path

import msgspec
import pytest
import torch

from fedstill import wire
from fedstill.config import resolve
from fedstill.data import Records
from fedstill.errors import RequestError, WireError
from fedstill.origin import run_of
from fedstill.rng import Rng
from fedstill.steps.gradient import evaluate
from fedstill.synthetic import load_set
from fedstill.tune.objective import Judge
from fedstill.tune.space import Candidate
from fedstill.tune.training import Training
from fedstill.tune.vote import Ask, Ballot, Electorate, Vote, electorate
from fedstill.types import ClientContext, Params, Task

TABLE = {"name": "mlp", "width": 8, "depth": 1}


@pytest.fixture(scope="module")
def voters(run: Path) -> Electorate:
    return electorate(run_of(run), run, load_set(run))


def candidate(voters: Electorate) -> tuple[Task, Params]:
    data = voters.setup.dataset
    model = resolve({"method": "fedavg", "model": TABLE}).build_model(data.shape, data.classes)
    return (
        Task(model, data.shape, data.classes, 1, 1, data.scaling),
        model.init(Rng(3).torch()),
    )


def test_the_tally_is_the_accuracy_on_all_records_and_every_byte_counts(
    voters: Electorate,
) -> None:
    task, params = candidate(voters)
    tally = voters.vote(TABLE, task, params)
    train = voters.setup.dataset.train
    everything = Records(train, torch.arange(len(train)), voters.setup.dataset.scaling)
    assert tally.accuracy == pytest.approx(evaluate(task, params, everything)[0])
    assert tally.count == len(train)
    ballot = Ballot(msgspec.json.encode(TABLE).decode(), params)
    down = len(wire.encode(ballot, Ask().download(task)))
    assert tally.down_bytes == 3 * down
    up = [len(wire.encode(Vote(right, 479), Ask().upload(task))) for right in (1, 10, 100)]
    assert 3 * min(up) <= tally.up_bytes <= 3 * max(up) + 3


def test_a_vote_is_two_numbers_and_nothing_else(voters: Electorate) -> None:
    task, params = candidate(voters)
    context = ClientContext(task, 1, 0, Rng(0), data=voters.setup.runner.records(0))
    vote, state = Ask().client(context, Ballot("{}", params), None)
    assert state is None
    assert vars(vote).keys() == {"right", "count"}
    schema = Ask().upload(task)
    assert wire.decode(wire.encode(vote, schema), schema) == vote
    with pytest.raises(WireError):
        wire.encode(Vote(-1, 3), schema)
    with pytest.raises(WireError):
        wire.encode(Vote(0, 0), schema)


def test_the_judge_counts_the_votes(run: Path, voters: Electorate) -> None:
    judge = Judge(load_set(run), repeats=2, electorate=voters)
    verdict = judge.judge(Candidate(TABLE, Training(0.05, epochs=2)), lambda *_: True)
    assert verdict is not None
    task, params = candidate(voters)
    single = voters.vote(TABLE, task, params)
    assert verdict.down_bytes == 2 * single.down_bytes
    assert verdict.value != verdict.held_out


def test_what_diverged_is_not_put_to_the_vote(run: Path, voters: Electorate) -> None:
    judge = Judge(load_set(run), electorate=voters)
    broken = Candidate(TABLE, Training(1e30, epochs=3))
    verdict = judge.judge(broken, lambda *_: True)
    assert verdict is not None
    assert (verdict.value, verdict.up_bytes) == (0.0, 0)


def test_without_clients_there_is_no_vote(run: Path, tmp_path: Path) -> None:
    alone = tmp_path / "set.safetensors"
    shutil.copy(run / "synthetic" / "round-0001.safetensors", alone)
    with pytest.raises(RequestError, match="lies in no run folder"):
        electorate(run_of(alone), alone, load_set(alone))


def test_exact_votes_on_private_records_are_refused(run: Path, tmp_path: Path) -> None:
    private = tmp_path / "run"
    shutil.copytree(run, private)
    with (private / "config.toml").open("a") as config:
        config.write("\n[privacy]\nepsilon = 1.0\n")
    with pytest.raises(RequestError, match=r"\[privacy\] section.*--objective holdout"):
        electorate(run_of(private), private, load_set(private))


def test_other_records_than_the_run_s_are_refused(run: Path, tmp_path: Path) -> None:
    moved = tmp_path / "run"
    shutil.copytree(run, moved)
    summary = (moved / "summary.json").read_text()
    digest = msgspec.json.decode(summary)["data_sha256"]
    (moved / "summary.json").write_text(summary.replace(digest, "0" * 64))
    with pytest.raises(RequestError, match="the data are not those"):
        electorate(run_of(moved), moved, load_set(moved))
