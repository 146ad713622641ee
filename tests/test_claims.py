"""What a client says about itself is believed within what the server knows: a spent budget, its
number of records."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.build import BuiltExperiment, build
from fedstill.client import Answer, Work
from fedstill.engine.base import Progress
from fedstill.engine.local import InProcess
from fedstill.errors import BudgetSpent, RunError, WireError
from fedstill.federation import Federation
from fedstill.methods import METHODS
from fedstill.methods.fedavg import FedAvg
from fedstill.methods.fednova import FedNova
from fedstill.observe.observer import Observer
from fedstill.runs.folder import RunFolder
from fedstill.testing import TOY_PRIVACY, toy_experiment
from fedstill.tune.vote import VotingClient
from fedstill.types import Limits
from fedstill.wire import tree
from tests.methods.small import SMALL


class Liar(InProcess):
    """Client 1 says that its budget is spent."""

    def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
        for answer in super().exchange(works, progress):
            yield replace(answer, spent=True, error="all spent") if answer.client == 1 else answer


class LiarWithLedgers(Liar):
    keeps_ledgers = True


def begun(folder: Path, quorum: float, privacy: Any = None) -> Federation:
    built = toy_experiment(FedAvg(weighting="uniform"), quorum=quorum, privacy=privacy)
    federation = Federation(built.with_ledgers(folder / "ledger"), RunFolder(folder), Observer())
    federation.begin()
    return federation


@pytest.mark.parametrize("engine", [Liar, LiarWithLedgers])
@pytest.mark.parametrize("privacy", [None, {**TOY_PRIVACY, "epsilon": 50.0}])
def test_a_client_that_says_its_budget_is_spent_is_one_that_failed(
    tmp_path: Path, engine: type[Liar], privacy: Any
) -> None:
    federation = begun(tmp_path / "run", 0.5, privacy)
    with engine(federation.built) as lying:
        metrics = federation.step(lying)
    assert metrics.clients == [0, 2]
    assert "spent" in metrics.failed[1]
    strict = begun(tmp_path / "strict", 1.0, privacy)
    with (
        engine(strict.built) as lying,
        pytest.raises(
            RunError, match=r"2 of 3 clients answered, the quorum is 3; client 1: .*spent"
        ),
    ):
        strict.step(lying)


def test_an_answer_that_says_so_without_a_reason_is_not_used(tmp_path: Path) -> None:
    class Quiet(InProcess):
        def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
            for answer in super().exchange(works, progress):
                yield replace(answer, spent=answer.client == 1)

    federation = begun(tmp_path, 0.5)
    with Quiet(federation.built) as lying:
        assert federation.step(lying).clients == [0, 2]


def test_it_is_believed_where_the_servers_ledger_agrees(tmp_path: Path) -> None:
    """A vote in another process may use the last accesses while a round is under way."""
    federation = begun(tmp_path, 0.5, {**TOY_PRIVACY, "epsilon": 50.0})

    class Voting(InProcess):
        def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
            plan, folder = self._built.plan, self._built.ledgers
            assert plan is not None
            assert folder is not None
            ledger = plan.ledger(folder, 1)
            while ledger.room >= 1:
                ledger.open(0, plan.clip)
            yield from super().exchange(works, progress)

    with Voting(federation.built) as engine, pytest.raises(BudgetSpent, match="client 1: "):
        federation.step(engine)


# --- the number of records -----------------------------------------------------------------------


class Boasting(InProcess):
    """Client 1 claims as many records as it is given."""

    claim = 2**40

    def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
        for answer in super().exchange(works, progress):
            if answer.client == 1 and answer.error is None:
                tensors, header = tree.unpack(answer.message)
                header["skeleton"]["records"] = self.claim
                answer = replace(answer, message=tree.pack(tensors, header))
            yield answer


COUNTING = [n for n, cls in METHODS.items() if hasattr(cls(), "weighting") and not cls.pooled]


@pytest.mark.parametrize("name", COUNTING)
def test_no_client_claims_more_records_than_the_largest_has(tmp_path: Path, name: str) -> None:
    method = METHODS[name](**{**SMALL.get(name, {}), "weighting": "records"})
    built = toy_experiment(method, rounds=1, quorum=0.5)
    federation = Federation(built, RunFolder(tmp_path), Observer())
    federation.begin()
    with Boasting(built) as engine:
        metrics = federation.step(engine)
    assert metrics.clients == [0, 2]
    largest = int(built.partition.sizes.max())
    claim = f"'records' is {2**40}, declared 1 .. {largest}; if that is right, raise max_records"
    assert claim in metrics.failed[1]


def test_the_cap_is_a_setting_and_follows_what_is_public() -> None:
    request = {"method": "fedavg", "clients": 4, "partition": "iid"}
    built = build(request)
    assert built.task.limits.records == int(built.partition.sizes.max())
    assert build({**request, "max_records": 7}).task.limits.records == 7
    private = {"epsilon": 5.0, "public_size": 123}
    assert build({**request, "privacy": private}).planned().task.limits.records == 123
    limited = {**request, "wire": {"max_norm": 3.0, "pixel_slack": 0.5}}
    expected = Limits(int(built.partition.sizes.max()), 3.0, 0.5)
    assert build(limited).task.limits == expected


def on_nodes(**settings: Any) -> BuiltExperiment:
    return build({"method": "fedavg", "clients": 4, "partition": "nodes", **settings})


def test_nodes_with_records_of_their_own_have_a_cap_too() -> None:
    assert on_nodes().task.limits.records == Limits().records == 100_000
    assert on_nodes(max_records=10**6).task.limits.records == 10**6


def test_an_honest_client_above_the_cap_is_told_what_to_do(tmp_path: Path) -> None:
    options: dict[str, Any] = {"clients": 3, "rounds": 1, "workers": 1, "model": "mlp"}
    with pytest.raises(RunError, match=r"declared 1 \.\. 5; if that is right, raise max_records"):
        fedstill.run("fedavg", out=tmp_path / "run", set={"max_records": 5}, **options)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def test_a_path_is_no_longer_than_so_many_records_make_it() -> None:
    task = replace(toy_experiment(FedAvg()).task, limits=Limits(records=100))
    assert FedNova(batch_size=10, local_epochs=2).upload(task).numbers["path"][:2] == (1, 20)
    assert FedNova(local_steps=7).upload(task).numbers["path"][:2] == (1, 7)


def test_a_vote_counts_no_more_records_either() -> None:
    task = replace(toy_experiment(FedAvg()).task, limits=Limits(records=30))
    schema = VotingClient().upload(task)
    vote = schema.type(30, 30)
    schema.check(vote)
    with pytest.raises(WireError, match=r"'count' is 31, declared 1 \.\. 30"):
        schema.check(replace(vote, count=31))
