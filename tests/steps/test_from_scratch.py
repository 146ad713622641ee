"""Networks trained on the set alone, reported with their spread."""

import statistics

import pytest
import torch

from fedstill.data import DataSettings, Records, load
from fedstill.models import MLP
from fedstill.records import SyntheticSet
from fedstill.rng import Rng
from fedstill.steps.from_scratch import evaluate_set, train_from_scratch
from fedstill.steps.scores import score
from fedstill.steps.training import Training
from fedstill.testing import as_vector
from fedstill.types import Task

DATA = load(DataSettings())
TASK = Task(MLP(DATA.shape, 10), DATA.shape, 10, 1, 1, DATA.scaling)
TEST = Records(DATA.test, torch.arange(len(DATA.test)), DATA.scaling)
SET = SyntheticSet(DATA.scaling(DATA.train.inputs[:80]), DATA.train.labels[:80].long())
TRAINING = Training(0.05, momentum=0.9, batch_size=32, epochs=15)


def test_a_set_of_records_teaches_and_the_spread_is_that_of_the_networks() -> None:
    reported: list[tuple[int, int]] = []
    found = evaluate_set(
        TASK, SET, TEST, Rng(1), TRAINING, 3, lambda step, steps: reported.append((step, steps))
    )
    each = [
        score(TASK, train_from_scratch(TASK, SET, Rng(1).at("network", n), TRAINING), TEST)
        for n in range(3)
    ]
    accuracies = [scores.accuracy for scores in each]
    assert found.accuracy == pytest.approx(statistics.fmean(accuracies))
    assert found.loss == pytest.approx(statistics.fmean(scores.loss for scores in each))
    assert found.details == {
        "networks": 3.0,
        "accuracy_std": pytest.approx(statistics.stdev(accuracies)),
        "accuracy_min": min(accuracies),
        "accuracy_max": max(accuracies),
    }
    assert min(accuracies) > 0.6
    assert reported == [(1, 3), (2, 3), (3, 3)]


def test_networks_differ_and_one_alone_has_no_spread() -> None:
    first, again, other = (train_from_scratch(TASK, SET, Rng(seed), TRAINING) for seed in (1, 1, 2))
    assert torch.equal(as_vector(first), as_vector(again))
    assert not torch.equal(as_vector(first), as_vector(other))
    assert evaluate_set(TASK, SET, TEST, Rng(1), TRAINING, 1).details["accuracy_std"] == 0


def test_a_single_epoch_and_soft_labels_are_fine() -> None:
    soft = SyntheticSet(SET.images, torch.nn.functional.one_hot(SET.labels, 10).float())
    once = Training(0.05, momentum=0.9, epochs=1)
    assert all(
        torch.isfinite(w).all() for w in train_from_scratch(TASK, soft, Rng(0), once).values()
    )


def test_a_schedule_replaces_the_two_halves() -> None:
    cosine = Training(0.05, momentum=0.9, batch_size=32, schedule="cosine")
    trained = train_from_scratch(TASK, SET, Rng(1), cosine, iterations=45)
    assert score(TASK, trained, TEST).accuracy > 0.6


def test_steps_are_halved_as_epochs_are() -> None:
    by_epochs = Training(0.05, momentum=0.9, batch_size=80, epochs=16)
    first = train_from_scratch(TASK, SET, Rng(1), by_epochs)
    second = train_from_scratch(TASK, SET, Rng(1), Training(0.05, 0.9, 80), iterations=16)
    assert torch.equal(as_vector(first), as_vector(second))
