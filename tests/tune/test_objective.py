from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedstill.errors import RequestError
from fedstill.rng import Rng
from fedstill.runs.sets import load_set
from fedstill.tune.objective import Judge, held_out_rows
from fedstill.tune.space import Candidate
from fedstill.tune.training import DEFAULT_TRAINING

CANDIDATE = Candidate(
    {"name": "mlp", "width": 16, "depth": 1},
    replace(DEFAULT_TRAINING, learning_rate=0.05, epochs=3),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    classes=st.lists(st.integers(0, 5), min_size=2, max_size=60),
    share=st.floats(0.05, 0.95),
    seed=st.integers(0, 99),
)
def test_the_split_is_stratified_and_leaves_every_class_something_to_train_on(
    classes: list[int], share: float, seed: int
) -> None:
    labels = torch.tensor(classes)
    if len(set(classes)) == len(classes):
        with pytest.raises(RequestError, match="one image per class"):
            held_out_rows(labels, share, Rng(seed))
        return
    held = held_out_rows(labels, share, Rng(seed))
    assert torch.equal(held, held_out_rows(labels, share, Rng(seed)))
    for label in set(classes):
        number, out = classes.count(label), int(held[labels == label].sum())
        assert 0 <= out < number
        if number > 1:
            assert out >= 1
            assert abs(out - share * number) <= 1


def test_the_same_candidate_gets_the_same_verdict(run: Path) -> None:
    judge = Judge(load_set(run))
    received: list[tuple[int, float]] = []

    def should_continue(epoch: int, accuracy: float) -> bool:
        received.append((epoch, accuracy))
        return True

    verdict = judge.judge(CANDIDATE, should_continue)
    assert verdict is not None
    assert verdict == judge.judge(CANDIDATE, lambda *_: True)
    assert [epoch for epoch, _ in received] == [1, 2, 3]
    assert verdict.value == verdict.held_out == received[-1][1]
    assert verdict.weights == 64 * 16 + 16 + 16 * 10 + 10
    assert verdict.up_bytes == verdict.down_bytes == 0


def test_repeats_are_the_mean_of_single_networks(run: Path) -> None:
    both = Judge(load_set(run), repeats=2).judge(CANDIDATE, lambda *_: True)
    first = Judge(load_set(run), repeats=1).judge(CANDIDATE, lambda *_: True)
    assert both is not None
    assert first is not None
    held = int(held_out_rows(load_set(run).classes, 0.25, Rng(0)).sum())
    second = 2 * both.value - first.value  # of the second network alone
    assert second * held == pytest.approx(round(second * held), abs=1e-6)
    assert both.value != first.value


def test_a_training_can_be_stopped(run: Path) -> None:
    epochs: list[int] = []

    def once(epoch: int, accuracy: float) -> bool:
        epochs.append(epoch)
        return False

    assert Judge(load_set(run)).judge(CANDIDATE, once) is None
    assert epochs == [1]
