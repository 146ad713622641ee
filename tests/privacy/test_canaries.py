"""Canaries at the door: their vectors, their turns, and the attacker's scores."""

from pathlib import Path

import torch

from fedstill.privacy.canaries import (
    Attacker,
    Directions,
    WatchedDoor,
    blank_record,
    make_canaries,
)
from fedstill.privacy.ledger import Ledger
from fedstill.privacy.mechanism import DoorTerms, PrivateRecords, Stacked, clip_factors
from fedstill.privacy.randomness import Replayed
from fedstill.records import Records
from fedstill.rng import Rng
from fedstill.types import Params
from tests.privacy.audits import BLANK, small_task

VECTORS = Directions({"a": (2, 2), "b": (3,)}, torch.tensor([0, 5, -1, 3]), 10.0)


def test_directions_are_vectors_like_any_other() -> None:
    dense = Stacked(VECTORS.dense())
    assert torch.equal(dense.squared_norms(), VECTORS.squared_norms())
    assert VECTORS.squared_norms().tolist() == [100.0, 100.0, 0.0, 100.0]
    assert VECTORS.dense()["b"][1].tolist() == [0.0, 10.0, 0.0]
    shares = torch.rand(3, 4, generator=Rng(0).torch(), dtype=torch.float64)
    for name, value in dense.weighted(shares).items():
        assert torch.allclose(VECTORS.weighted(shares)[name], value)
    clipped = VECTORS.weighted(clip_factors(VECTORS, 1.0))
    assert clipped["a"].flatten().tolist() == [1.0, 0.0, 0.0, 1.0]


def door(tmp_path: Path, canaries: int, sigma: float) -> tuple[WatchedDoor, Attacker, torch.Tensor]:
    task, terms = small_task(), DoorTerms(1.0, sigma, 0.5, 40, torch.arange(10))
    made = make_canaries(canaries, BLANK, task, terms.classes, Rng(0))
    attacker = Attacker(terms, canaries)
    ledger = Ledger(tmp_path / "ledger.jsonl", 1.0, sigma)
    records = PrivateRecords(made.chosen, ledger, Replayed(Rng(0)), terms, 1, 4096)
    return WatchedDoor(records, made, attacker, blank_record(BLANK, task)), attacker, made.included


def pixels(records: Records) -> Params:
    return {"pixels": records.all()[0].flatten(1)}


def test_almost_without_noise_every_canary_is_told(tmp_path: Path) -> None:
    watched, attacker, included = door(tmp_path, 64, sigma=0.01)
    assert attacker.coverage == 0.0
    watched.noisy_sum(pixels)
    watched.noisy_mean(pixels)
    watched.noisy_class_sums(pixels)
    assert attacker.coverage == 1.0
    assert torch.equal(attacker.scores > 0, included)
    least, most = attacker.scores[included].min(), attacker.scores[~included].max()
    assert most < attacker.threshold(1e-4, Rng(1)) < least
    assert watched.expected_batch == 40  # what is not watched is the door's own


def test_canaries_take_turns_where_coordinates_are_too_few(tmp_path: Path) -> None:
    watched, attacker, included = door(tmp_path, 160, sigma=0.01)
    for turn in (1, 2, 3):  # 64 pixels, 160 canaries
        watched.noisy_sum(pixels)
        assert int((attacker.scores != 0).sum()) == min(160, 64 * turn)
    assert attacker.room == 64
    assert torch.equal(attacker.scores > 0, included)
    watched.noisy_class_sums(pixels)  # 64 pixels of ten classes: room for all
    assert attacker.room == 160


def test_counts_are_evidence(tmp_path: Path) -> None:
    """One canary per class and nothing else known: the count alone tells who is in."""
    terms = DoorTerms(1.0, 0.05, 1.0, 40, torch.arange(10))
    attacker = Attacker(terms, 10)
    assert torch.equal(attacker.with_counts(), attacker.scores)
    included = torch.arange(10) % 3 == 0
    attacker.see_counts(included.double())
    assert torch.equal(attacker.with_counts() > 0, included)
    many = Attacker(terms, 40)  # four per class: a full class, and an empty one
    many.see_counts(torch.tensor([4.0, 0.0] * 5))
    assert torch.equal(many.with_counts() > 0, torch.arange(40) % 2 == 0)


def test_canaries_have_every_class_in_turn_and_texts_are_blank() -> None:
    task = small_task()
    made = make_canaries(20, BLANK, task, torch.tensor([2, 5]), Rng(0))
    assert made.records.labels.tolist() == [2, 5] * 10
    assert 0 < len(made.chosen) < 20
    tokens = type(BLANK)(torch.zeros(1, 7, dtype=torch.int64), torch.zeros(1, 7, dtype=torch.int64))
    texts = make_canaries(4, tokens, task, torch.tensor([0]), Rng(0)).records.split
    assert texts.inputs.shape == texts.labels.shape == (4, 7)
