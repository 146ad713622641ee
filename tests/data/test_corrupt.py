"""Mislabelled records: who is hit, how, and what is not touched."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedstill
from fedstill.build import build
from fedstill.data import DataSettings, Partition, load
from fedstill.data.corrupt import derangement, mislabelled
from fedstill.data.settings import CorruptSettings
from fedstill.errors import RequestError
from fedstill.rng import Rng

LABELS = torch.arange(40) % 4
OWNER = Partition((torch.arange(40) // 10).int(), 4)


def corrupted(share: float, clients: Any = "all", seed: int = 0) -> torch.Tensor:
    return mislabelled(LABELS, OWNER, 4, CorruptSettings(share, clients), Rng(seed))


@settings(max_examples=50, deadline=None)
@given(classes=st.integers(2, 30), seed=st.integers(0, 1000))
def test_no_class_stays_in_its_place(classes: int, seed: int) -> None:
    drawn = derangement(classes, Rng(seed))
    assert sorted(drawn.tolist()) == list(range(classes))
    assert all(int(new) != old for old, new in enumerate(drawn))


@settings(max_examples=50, deadline=None)
@given(share=st.floats(0, 1), seed=st.integers(0, 1000))
def test_the_share_is_that_of_every_client_and_the_permutation_one(share: float, seed: int) -> None:
    after = corrupted(share, seed=seed)
    wrong = after != LABELS
    for client in range(4):
        assert int(wrong[OWNER.index(client)].sum()) == round(share * 10)
    pairs = set(zip(LABELS[wrong].tolist(), after[wrong].tolist(), strict=True))
    assert len({old for old, _ in pairs}) == len(pairs)  # a class has one wrong label everywhere


def test_a_larger_share_hits_the_same_records_and_more() -> None:
    some, more = (corrupted(share) != LABELS for share in (0.3, 0.7))
    assert bool((more | ~some).all())
    assert int(more.sum()) == 28


def test_only_the_chosen_clients_are_hit() -> None:
    after = corrupted(1.0, (2, 0, 2))
    wrong = after != LABELS
    assert wrong[:10].all()
    assert wrong[20:30].all()
    assert not wrong[10:20].any()
    assert not wrong[30:].any()
    # A client's wrong labels do not depend on who else is hit.
    assert torch.equal(corrupted(0.5, (2,))[20:30], corrupted(0.5)[20:30])


def test_share_zero_changes_nothing_and_the_input_is_not_written_into() -> None:
    assert corrupted(0.0) is LABELS
    before = LABELS.clone()
    corrupted(1.0)
    assert torch.equal(LABELS, before)


def test_the_test_split_is_never_touched() -> None:
    data = load(DataSettings())
    built = build({"method": "fedavg", "corrupt": {"share": 1.0}}, dataset=data)
    after = built.dataset
    assert torch.equal(after.test.labels, data.test.labels)
    assert torch.equal(after.test.inputs, data.test.inputs)
    assert bool((after.train.labels != data.train.labels).all())
    clean = build({"method": "fedavg"}, dataset=data)
    assert built.partition.digest == clean.partition.digest  # partitioned by right labels


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ({"share": -0.1}, "corrupt.share: expected float >= 0"),
        ({"share": 1.1}, "corrupt.share: expected float <= 1"),
        ({"share": float("nan")}, "corrupt.share: expected a finite number"),
        ({"shares": 0.1}, "corrupt.shares: no such setting; did you mean 'share'"),
        ({"share": 0.1, "clients": [0, 10]}, "corrupt.clients: there is no client 10"),
        ({"share": 0.1, "clients": [-1]}, "corrupt.clients: there is no client -1"),
        ({"clients": [99]}, "corrupt.clients: there is no client 99"),
        ({"clients": "some"}, "corrupt.clients"),
        ({"clients": ["a"]}, "corrupt.clients"),
    ],
)
def test_wrong_sections_are_refused(section: dict[str, Any], reason: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(RequestError) as caught:
        fedstill.run("fedavg", out=out, config={"corrupt": section})
    assert reason in str(caught.value)
    assert not out.exists()


def test_one_class_has_no_wrong_label() -> None:
    with pytest.raises(RequestError, match="single class"):
        derangement(1, Rng(0))


def test_a_run_records_it_and_its_workers_see_the_wrong_labels(tmp_path: Path) -> None:
    result = fedstill.run(
        "fedavg",
        rounds=2,
        clients=3,
        partition="iid",
        model="mlp",
        workers=2,
        out=tmp_path / "run",
        set={"corrupt.share": 1.0, "method.learning_rate": 0.2, "method.local_epochs": 5},
    )
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert config["corrupt"] == {"share": 1.0, "clients": "all"}
    accuracy = result.summary.accuracy
    assert accuracy is not None
    assert accuracy < 0.05  # far below guessing: learnt wrong, tested right
