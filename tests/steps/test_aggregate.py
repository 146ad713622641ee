"""Aggregation: by hand, and what must hold whatever a minority of the vectors is."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedstill
from fedstill.errors import RequestError, RunError
from fedstill.steps.aggregate import (
    Aggregating,
    Rule,
    krum,
    median,
    multi_krum,
    trimmed_mean,
)
from fedstill.steps.arithmetic import weighted_sum
from fedstill.types import Params

RULES: tuple[Rule, ...] = ("mean", "median", "trimmed-mean", "krum", "multi-krum")


def vectors(*rows: list[float]) -> list[Params]:
    """Each row as a vector of two tensors."""
    whole = [torch.tensor(row, dtype=torch.float32) for row in rows]
    return [{"a": row[:1], "b": row[1:]} for row in whole]


def flat(params: Params) -> Tensor:
    return torch.cat([v.flatten() for v in params.values()])


def aggregated(rule: Rule, rows: list[Params], **options: Any) -> Tensor:
    shares = [1 / len(rows)] * len(rows)
    return flat(Aggregating(aggregate=rule, **options).aggregated(rows, shares))


def test_median_by_hand() -> None:
    odd = vectors([1, 10], [2, -5], [90, 0])
    assert flat(median(odd)).tolist() == [2, 0]
    assert flat(median([*odd, *vectors([4, 4])])).tolist() == [3, 2]  # between the middle two


def test_trimmed_mean_by_hand() -> None:
    rows = vectors([1, 5], [2, 4], [3, 3], [4, 2], [100, -100])
    assert flat(trimmed_mean(rows, 0.2)).tolist() == [3, 3]
    assert flat(trimmed_mean(rows, 0.1)).tolist() == [3, 3]  # a tenth of five is one, not none
    assert flat(trimmed_mean(rows, 0.0)).tolist() == pytest.approx([22, -17.2])
    assert flat(trimmed_mean(rows, 0.49)).tolist() == [3, 3]
    assert flat(trimmed_mean(rows[:2], 0.49)).tolist() == [1.5, 4.5]


def test_krum_by_hand() -> None:
    """n = 5, f = 1: the two nearest of each are 1+4, 1+1, 1+4, 4+9 and far away."""
    rows = vectors([0, 0], [1, 0], [2, 0], [4, 0], [50, 0])
    assert flat(krum(rows, 1)).tolist() == [1, 0]
    assert flat(multi_krum(rows, 1)).tolist() == [1.75, 0]  # all but the last


def test_krum_is_the_obvious_loop() -> None:
    generator = torch.Generator().manual_seed(3)
    rows = [{"w": torch.randn(3, 2, generator=generator)} for _ in range(9)]
    scores = []
    for i, row in enumerate(rows):
        apart = sorted(
            float((row["w"] - other["w"]).square().sum()) for j, other in enumerate(rows) if j != i
        )
        scores.append(sum(apart[: 9 - 2 - 2]))
    best = min(range(9), key=scores.__getitem__)
    assert torch.equal(krum(rows, 2)["w"], rows[best]["w"])
    chosen = sorted(range(9), key=scores.__getitem__)[:7]
    expected = torch.stack([rows[i]["w"] for i in chosen]).mean(0)
    assert torch.allclose(multi_krum(rows, 2)["w"], expected, atol=1e-6)


def test_the_mean_is_the_weighted_sum_to_the_bit() -> None:
    generator = torch.Generator().manual_seed(1)
    rows = [{"w": torch.randn(50, generator=generator)} for _ in range(5)]
    shares = [0.1, 0.3, 0.25, 0.05, 0.3]
    assert torch.equal(Aggregating().aggregated(rows, shares)["w"], weighted_sum(rows, shares)["w"])


NUMBERS = st.floats(-100, 100, width=32, allow_subnormal=False)
ROWS = st.integers(5, 9).flatmap(
    lambda n: st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=n, max_size=n)
)
FAST = settings(max_examples=25, deadline=None)


@pytest.mark.parametrize("rule", RULES)
@FAST
@given(rows=ROWS, seed=st.integers(0, 99))
def test_the_order_does_not_matter(rule: Rule, rows: list[list[float]], seed: int) -> None:
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).tolist()
    first = aggregated(rule, vectors(*rows))
    again = aggregated(rule, vectors(*[rows[i] for i in order]))
    assert torch.allclose(first, again, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rule", RULES)
@FAST
@given(row=st.lists(NUMBERS, min_size=3, max_size=3), number=st.integers(5, 9))
def test_where_all_agree_it_is_their_vector(rule: Rule, row: list[float], number: int) -> None:
    result = aggregated(rule, vectors(*[row] * number))
    assert torch.allclose(result, torch.tensor(row), rtol=1e-5, atol=1e-5)


WRONG = st.lists(st.floats(-(2.0**60), 2.0**60, width=32), min_size=3, max_size=3)


@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
@FAST
@given(rows=ROWS, data=st.data())
def test_a_minority_cannot_leave_the_range_of_the_others(
    rule: Rule, rows: list[list[float]], data: st.DataObject
) -> None:
    wrong = data.draw(st.lists(WRONG, max_size=len(rows) - 1))
    sound = torch.tensor(rows)
    trim = min(0.49, len(wrong) / (len(rows) + len(wrong)))
    result = aggregated(rule, vectors(*rows, *wrong), trim=trim)
    slack = 1e-4 * (1 + sound.abs().max())
    assert (result >= sound.min(0).values - slack).all()
    assert (result <= sound.max(0).values + slack).all()


@pytest.mark.parametrize("rule", ["krum", "multi-krum"])
@FAST
@given(rows=ROWS, data=st.data())
def test_a_minority_cannot_move_krum_out_of_the_others_neighbourhood(
    rule: Rule, rows: list[list[float]], data: st.DataObject
) -> None:
    """Whatever is chosen has a score at most that of the worst sound vector, (n - f - 2) D^2 with
    their diameter D, and a sound vector among its nearest: so it is within sqrt(n - f - 2) D."""
    byzantine = data.draw(st.integers(0, len(rows) - 3))
    wrong = data.draw(st.lists(WRONG, min_size=byzantine, max_size=byzantine))
    number = len(rows) + byzantine
    assert number >= 2 * byzantine + 3
    sound = torch.tensor(rows, dtype=torch.float64)
    result = aggregated(rule, vectors(*rows, *wrong), byzantine=byzantine).double()
    diameter = float(torch.cdist(sound, sound).max())
    reach = math.sqrt(number - byzantine - 2) * diameter
    nearest = float((sound - result).norm(dim=1).min())
    assert nearest <= (reach + diameter) * (1 + 1e-4) + 1e-3


def test_a_single_vector_moves_the_mean_anywhere() -> None:
    rows = vectors([0, 0], [0, 0], [0, 0], [1e6, 0])
    assert float(aggregated("mean", rows)[0]) == 250000
    assert float(aggregated("median", rows)[0]) == 0


@pytest.mark.parametrize("rule", ["krum", "multi-krum"])
def test_too_few_vectors_for_krum_are_a_clean_error(rule: Rule) -> None:
    with pytest.raises(RunError, match=r"byzantine = 1 needs 5 vectors, there are 4"):
        aggregated(rule, vectors(*[[0.0, 0.0]] * 4))


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fednova", "fedsgd", "distdd"])
def test_too_few_clients_for_krum_are_refused_before_the_run(method: str, tmp_path: Path) -> None:
    settings_: dict[str, Any] = {"method.aggregate": "krum", "method.byzantine": 2}
    out = tmp_path / "run"
    with pytest.raises(RequestError, match=r"krum' with byzantine = 2 needs 7 clients per round"):
        fedstill.run(method, clients=10, participation=0.5, out=out, set=settings_)
    with pytest.raises(RequestError, match=r"quorum = 0.5 lets a round end with 5 replies"):
        fedstill.run(method, clients=10, out=out, set={**settings_, "quorum": 0.5})
    assert not out.exists()


def test_the_sum_has_no_weights() -> None:
    rows = vectors([1, 2], [3, 4], [5, 6])
    summed = Aggregating(aggregate="sum").aggregated(rows, [0.5, 0.25, 0.25])
    assert flat(summed).tolist() == [9, 12]


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fednova", "fedsgd", "random-mask"])
def test_updates_of_a_model_are_not_summed(method: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"method\.aggregate.*'sum'"):
        fedstill.run(method, out=tmp_path / "run", set={"method.aggregate": "sum"})


@pytest.mark.parametrize("rule", RULES[1:])
@pytest.mark.parametrize("method", ["fedavg", "fednova", "fedsgd"])
def test_the_fedavg_family_runs_with_every_rule(method: str, rule: Rule, tmp_path: Path) -> None:
    result = fedstill.run(
        method,
        clients=5,
        partition="iid",
        rounds=2,
        workers=1,
        model="mlp",
        out=tmp_path / "run",
        set={"method.aggregate": rule, "method.learning_rate": 0.2},
    )
    losses = [m.loss for m in result.metrics if m.loss is not None]
    assert losses[1] < losses[0]
