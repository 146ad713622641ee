"""The mechanism: what one record can change, what noise is added, and what is counted first."""

import dataclasses
import math
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedstill.config import resolve
from fedstill.errors import BudgetSpent, RequestError
from fedstill.models import MLP, ConvNet, Model
from fedstill.privacy.ledger import Ledger
from fedstill.privacy.mechanism import (
    COUNT_SHARE,
    DoorTerms,
    PrivateRecords,
    Stacked,
    clip_factors,
)
from fedstill.privacy.randomness import OperatingSystem
from fedstill.records import Records, Split
from fedstill.rng import Rng
from fedstill.steps.gradient import full_gradient
from fedstill.steps.per_record import weight_gradients
from fedstill.types import Params
from tests.privacy.doors import door, some_records, toy_task, without

MODELS = {
    "convnet": ConvNet((1, 8, 8), 3, width=4),
    "group": ConvNet((1, 8, 8), 3, width=8, norm="group"),
    "mlp": MLP((1, 8, 8), 3, width=5),
    "module": Model.from_module(
        nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 3))
    ),
}


def vector(release: Params) -> Tensor:
    return torch.cat([v.flatten() for v in release.values()]).double()


@settings(max_examples=25, deadline=None)
@given(
    model=st.sampled_from(sorted(MODELS)),
    number=st.integers(0, 9),
    rate=st.sampled_from([0.05, 0.5, 1.0]),
    clip=st.sampled_from([1e-3, 0.3, 50.0]),
    by_class=st.booleans(),
    seed=st.integers(0, 99),
)
def test_one_record_moves_the_sum_by_at_most_the_clip(
    model: str, number: int, rate: float, clip: float, by_class: bool, seed: int
) -> None:
    """Neighbours share noise and the draws of the common records: what is left is one record."""
    task = toy_task(MODELS[model])
    records = some_records(task, number + 1, seed)
    position = seed % (number + 1)
    per_record = weight_gradients(task, task.model.init(Rng(seed).torch()))

    def released(held: Records) -> Tensor:
        with tempfile.TemporaryDirectory() as folder:
            private = door(Path(folder), held, task, rate=rate, clip=clip, sigma=0.1)
            if not by_class:
                return vector(private.noisy_sum(per_record))
            sums = private.noisy_class_sums(per_record)
            # The count is released as the constant that was appended, COUNT_SHARE of the clip.
            return vector({**sums.sums, "count": sums.counts * COUNT_SHARE * clip})

    with_it, without_it = released(records), released(without(records, position))
    assert with_it.shape == without_it.shape
    moved = float((with_it - without_it).norm())
    # What was noise and sum is rounded to single precision once, coordinate by coordinate.
    assert moved <= clip * (1 + 1e-5) + 1e-6 * float(with_it.norm())


def test_a_batch_clipped_instead_moves_by_more(tmp_path: Path) -> None:
    """The same test on the mechanism that is not ours fails, so it is able to."""
    task = toy_task()
    params = task.model.init(Rng(0).torch())

    def batch_clipped(held: Records) -> Tensor:
        gradient = vector(full_gradient(task, params, held)[0])
        return gradient * min(1.0, 0.3 / float(gradient.norm()))

    moved = 0.0
    for seed in range(8):
        records = some_records(task, 3, seed)
        difference = batch_clipped(records) - batch_clipped(without(records, 0))
        moved = max(moved, float(difference.norm()))
    assert moved > 0.3 / 3 * 1.2  # its claimed sensitivity, C / |B|


def test_without_noise_and_clipping_it_is_the_plain_gradient(tmp_path: Path) -> None:
    task = toy_task()
    records = some_records(task, 20)
    params = task.model.init(Rng(0).torch())
    expected = full_gradient(task, params, records)[0]
    released = door(tmp_path, records, task).noisy_mean(weight_gradients(task, params))
    assert list(released) == list(params)
    for name, value in expected.items():
        assert torch.allclose(released[name], value, atol=1e-6)


def test_class_sums_are_those_of_the_obvious_loop(tmp_path: Path) -> None:
    task = toy_task()
    records = some_records(task, 12)
    x, y = records.all()

    def pixels(part: Records) -> Params:
        return {"pixels": part.all()[0]}

    private = door(tmp_path, records, task, clip=4.0)
    sums = private.noisy_class_sums(pixels)
    for label in range(3):
        expected = torch.zeros(task.shape)
        for image in x[y == label]:
            expected += image * min(1.0, private.class_clip / float(image.norm()))
        assert torch.allclose(sums.sums["pixels"][label], expected, atol=1e-5)
    assert torch.allclose(sums.counts, torch.bincount(y, minlength=3).float(), atol=1e-5)
    assert private.class_clip == pytest.approx(4.0 * math.sqrt(1 - COUNT_SHARE**2))
    public = door(tmp_path, records, task, clip=4.0, counts_released=False, size=30)
    assert public.noisy_class_sums(pixels).counts.tolist() == [10.0, 10.0, 10.0]
    assert public.class_clip == 4.0


@pytest.mark.parametrize("by_class", [False, True])
def test_an_empty_batch_is_noise_of_the_right_shape(tmp_path: Path, by_class: bool) -> None:
    task = toy_task()
    params = task.model.init(Rng(0).torch())
    private = door(tmp_path, some_records(task, 0), task, sigma=2.0, clip=0.5, size=10)
    if by_class:
        release = private.noisy_class_sums(weight_gradients(task, params)).sums
        shapes = {k: (3, *v.shape) for k, v in params.items()}
    else:
        release = private.noisy_sum(weight_gradients(task, params))
        shapes = {k: tuple(v.shape) for k, v in params.items()}
    assert {k: tuple(v.shape) for k, v in release.items()} == shapes
    assert float(vector(release).std()) == pytest.approx(2.0 * 0.5, rel=0.15)


def test_the_noise_is_sigma_times_the_clip_and_newly_drawn_each_time(tmp_path: Path) -> None:
    task = toy_task()
    records = some_records(task, 5)

    def nothing(part: Records) -> Params:
        return {"nothing": torch.zeros(len(part), 20_000)}

    ledger = Ledger(tmp_path / "ledger.jsonl", 0.5, 3.0)
    terms = DoorTerms(0.5, 3.0, 0.2, 5, torch.arange(3))
    private = PrivateRecords(records, ledger, OperatingSystem(), terms, 1)
    first, second = (private.noisy_sum(nothing)["nothing"] for _ in range(2))
    for draw in (first, second):
        assert float(draw.std()) == pytest.approx(0.6, rel=0.03)
        assert abs(float(draw.mean())) < 4 * 0.6 / math.sqrt(20_000)
        assert float((draw.abs() < 0.6).float().mean()) == pytest.approx(0.6827, abs=0.02)
    assert abs(float((first * second).mean())) < 4 * 0.36 / math.sqrt(20_000)
    other = door(tmp_path / "other", records, task, sigma=3.0, clip=0.2)
    assert not torch.equal(first, other.noisy_sum(nothing)["nothing"])


def test_the_sample_is_poisson(tmp_path: Path) -> None:
    """Batch sizes vary as Bernoulli draws do, and every record comes as often as q says."""
    uniform = OperatingSystem().uniform(0, 200_000)
    assert float(uniform.min()) >= 0
    assert float(uniform.max()) < 1
    drawn = (uniform < 0.1).view(2000, 100).float()
    assert float(drawn.mean()) == pytest.approx(0.1, abs=0.003)
    assert float(drawn.sum(1).var()) == pytest.approx(100 * 0.1 * 0.9, rel=0.15)


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38, 1e19])
def test_a_record_that_is_not_finite_or_far_too_long_counts_as_nothing(
    value: float, tmp_path: Path
) -> None:
    task = toy_task()
    records = some_records(task, 6)

    def poisoned(part: Records) -> Params:
        values = part.index.float()[:, None].repeat(1, 4)
        values[part.index == 2] = value
        return {"values": values}

    total = door(tmp_path, records, task).noisy_sum(poisoned)["values"]
    assert total.tolist() == [0 + 1 + 3 + 4 + 5] * 4


def one_number(part: Records) -> Params:
    return {"values": part.index.double()[:, None]}


def no_record_is_fine(part: Records) -> Params:
    return {"values": torch.full((len(part), 3), math.nan)}


def raising_for_record_2(part: Records) -> Params:
    if 2 in part.index.tolist() and part.split.inputs.any():
        raise ValueError("the image of record 2")
    return one_number(part)


def test_whether_a_release_exists_tells_nothing(tmp_path: Path) -> None:
    """Neither for records whose vectors are all not finite, nor for a blank one of that kind."""
    task = toy_task()
    records = some_records(task, 6)
    private = door(tmp_path, records, task, sigma=1.0)
    release = private.noisy_sum(no_record_is_fine)["values"]
    assert release.shape == (3,)
    assert bool(torch.isfinite(release).all())
    assert float(release.abs().sum()) > 0  # noise
    by_class = private.noisy_class_sums(no_record_is_fine)
    assert by_class.sums["values"].shape == (task.classes, 3)
    assert bool(torch.isfinite(by_class.counts).all())


def test_a_record_that_cannot_be_computed_counts_as_nothing(tmp_path: Path) -> None:
    task = toy_task()
    private = door(tmp_path, some_records(task, 6), task)
    total = private.noisy_sum(raising_for_record_2, clip=100.0)["values"]
    assert total.tolist() == [0 + 1 + 3 + 4 + 5]


def test_a_client_without_records_answers_with_noise(tmp_path: Path) -> None:
    task = toy_task()
    records = some_records(task, 6)
    nobody = Split(records.split.inputs[:0], records.split.labels[:0])
    empty = dataclasses.replace(records, split=nobody, index=records.index[:0])
    private = door(tmp_path, empty, task, sigma=1.0)
    gradient = private.noisy_mean(weight_gradients(task, task.model.init(torch.Generator())))
    assert {k: tuple(v.shape) for k, v in gradient.items()} == task.model.shapes
    assert all(float(v.abs().sum()) > 0 for v in gradient.values())


def test_norms_are_summed_in_double_precision(tmp_path: Path) -> None:
    values = torch.cat([torch.full((1, 4096), 64.0), torch.full((1, 400), 0.5)], 1)
    norms = Stacked({"values": values}).squared_norms()
    assert norms.dtype == torch.float64
    assert norms.tolist() == [4096.0**2 + 100]  # the last hundred: each 0.25 is lost beside 2^24
    small = torch.full((1, 4), 2e-7)  # a clip of 1e-6, the smallest allowed, is still exact
    (factor,) = clip_factors(Stacked({"v": 10 * small}), 1e-6).tolist()
    assert factor == pytest.approx(0.25, rel=1e-6)
    with pytest.raises(RequestError, match=r"privacy\.clip"):
        resolve({"method": "fedsgd", "privacy": {"sigma": 1.0, "clip": 1e-7}})


def test_vectors_must_be_one_a_record(tmp_path: Path) -> None:
    task = toy_task()
    private = door(tmp_path, some_records(task, 6), task)
    with pytest.raises(ValueError, match="one vector per record"):
        private.noisy_sum(lambda part: {"mean": part.all()[0].mean(0)})


def test_an_access_is_counted_before_it_is_made(tmp_path: Path) -> None:
    task = toy_task()
    private = door(tmp_path, some_records(task, 6), task)

    def crash(part: Records) -> Params:
        raise RuntimeError("killed in the middle of it")

    with pytest.raises(RuntimeError):
        private.noisy_sum(crash)
    assert Ledger(tmp_path / "ledger.jsonl", 1.0, 0.0).count == 1


def test_the_access_that_would_pass_the_budget_touches_nothing(tmp_path: Path) -> None:
    task = toy_task()
    private = door(tmp_path, some_records(task, 6), task)
    ledger = private._ledger
    assert isinstance(ledger, Ledger)
    ledger.most = 1
    seen: list[int] = []

    def look(part: Records) -> Params:
        seen.extend(part.index.tolist())
        return {"x": torch.zeros(len(part), 1)}

    private.noisy_sum(look)
    assert len(seen) == 6
    with pytest.raises(BudgetSpent):
        private.noisy_sum(look)
    assert len(seen) == 6
    assert ledger.count == 1
