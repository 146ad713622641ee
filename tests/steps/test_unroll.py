"""Backpropagation through SGD steps: against finite differences and one large graph."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedstill.data import Scaling
from fedstill.models import MLP, ConvNet, Model
from fedstill.rng import Rng
from fedstill.steps import unroll as unroll_module
from fedstill.steps.arithmetic import subtract
from fedstill.steps.soft_labels import label_logits, soft_labels, softmax_backward
from fedstill.steps.unroll import Batches, Rates, backward, sgd_steps, unroll
from fedstill.testing import as_vector
from fedstill.types import Params, Task

RATE = 0.3


def task_of(model: Model, shape: tuple[int, ...]) -> Task:
    return Task(model, shape, 3, 1, 1, Scaling((), ()))


# GELU: a network with kinks has no derivative to compare with where a difference crosses one.
SMOOTH = task_of(ConvNet((1, 4, 4), 3, width=2, activation="gelu"), (1, 4, 4))


def start_of(task: Task) -> Params:
    return {k: v.double() for k, v in task.model.init(Rng(1).torch()).items()}


def batches_of(task: Task, steps: int, size: int, *, soft: bool) -> Batches:
    generator = Rng(2).torch()
    x = torch.randn(steps, size, *task.shape, generator=generator, dtype=torch.float64)
    if soft:
        y = torch.randn(steps, size, 3, generator=generator, dtype=torch.float64).softmax(-1)
    else:
        y = torch.randint(3, (steps, size), generator=generator, dtype=torch.int32)
    return Batches(x, y)


def half_square(end: Params) -> tuple[Tensor, Params]:
    """A loss at the end of the path, and its gradient there."""
    return sum((w.square().sum() for w in end.values()), torch.zeros(())) / 2, end


def difference(function: Callable[[Tensor], float], at: Tensor) -> Tensor:
    """The gradient by central differences, one number after another."""
    gradient = torch.zeros_like(at)
    for i in range(at.numel()):
        nudge = torch.zeros_like(at)
        nudge.view(-1)[i] = 1e-5
        gradient.view(-1)[i] = (function(at + nudge) - function(at - nudge)) / 2e-5
    return gradient


def loss_at_the_end(task: Task, start: Params, batches: Batches, rates: Rates) -> float:
    return float(half_square(sgd_steps(task, start, batches, rates))[0])


def test_gradients_are_those_of_finite_differences() -> None:
    task, start = SMOOTH, start_of(SMOOTH)
    batches = batches_of(task, 3, 2, soft=True)
    path = unroll(task, start, batches, RATE, stride=2)
    gradients = backward(task, path, batches, RATE, half_square(path.end)[1])

    def moved(x: Tensor = batches.x, y: Tensor = batches.y, rate: float = RATE) -> float:
        return loss_at_the_end(task, start, Batches(x, y), rate)

    assert torch.allclose(gradients.x, difference(lambda x: moved(x=x), batches.x), atol=1e-7)
    assert torch.allclose(gradients.y, difference(lambda y: moved(y=y), batches.y), atol=1e-7)
    by_rate = difference(lambda r: moved(rate=float(r)), torch.tensor([RATE], dtype=torch.float64))
    assert gradients.learning_rate == pytest.approx(float(by_rate), abs=1e-7)
    for name, weight in start.items():

        def from_weight(w: Tensor, name: str = name) -> float:
            return loss_at_the_end(task, {**start, name: w}, batches, RATE)

        by_weight = difference(from_weight, weight)
        assert torch.allclose(gradients.start[name], by_weight, atol=1e-7), name


def test_every_step_may_have_its_own_learning_rate() -> None:
    task, start = SMOOTH, start_of(SMOOTH)
    batches = batches_of(task, 3, 2, soft=True)
    rates = [0.3, 0.1, 0.7]
    path = unroll(task, start, batches, rates, stride=2)
    weights = start
    for step, rate in enumerate(rates):  # three paths of one step each
        weights = sgd_steps(task, weights, Batches(batches.x[[step]], batches.y[[step]]), rate)
    assert torch.equal(as_vector(path.end), as_vector(weights))
    gradients = backward(task, path, batches, rates, half_square(path.end)[1])

    def by_rates(at: Tensor) -> float:
        return loss_at_the_end(task, start, batches, at.tolist())

    def by_inputs(at: Tensor) -> float:
        return loss_at_the_end(task, start, Batches(at, batches.y), rates)

    found = torch.tensor(gradients.learning_rates, dtype=torch.float64)
    at = torch.tensor(rates, dtype=torch.float64)
    assert torch.allclose(found, difference(by_rates, at), atol=1e-7)
    assert torch.allclose(gradients.x, difference(by_inputs, batches.x), atol=1e-7)


def test_equal_learning_rates_are_one_learning_rate() -> None:
    task, start = SMOOTH, start_of(SMOOTH)
    batches = batches_of(task, 3, 2, soft=True)
    one, each = (
        backward(task, unroll(task, start, batches, rates), batches, rates, start)
        for rates in (RATE, [RATE] * 3)
    )
    assert torch.equal(one.x, each.x)
    assert torch.equal(as_vector(one.start), as_vector(each.start))
    assert one.learning_rates == each.learning_rates
    assert one.learning_rate == pytest.approx(sum(each.learning_rates))


def one_large_graph(
    task: Task, start: Params, batches: Batches, rate: float
) -> tuple[Params, Tensor, Tensor | None]:
    """The obvious way: every step's graph kept, one backward pass through all of them."""
    x = batches.x.clone().requires_grad_(True)
    soft = batches.y.is_floating_point()
    y = batches.y.clone().requires_grad_(True) if soft else batches.y.long()
    weights = {k: v.clone().requires_grad_(True) for k, v in start.items()}
    for step in range(len(batches)):
        loss = task.loss(task.model.apply(weights, x[step]), y[step]).mean()
        gradient = torch.autograd.grad(
            loss,
            list(weights.values()),
            create_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        weights = {k: w - rate * g for (k, w), g in zip(weights.items(), gradient, strict=True)}
    loss, _ = half_square(weights)
    found = torch.autograd.grad(loss, [x, y] if soft else [x])
    end = {k: w.detach() for k, w in weights.items()}
    return end, found[0], found[1] if soft else None


@settings(max_examples=15, deadline=None)
@given(
    steps=st.integers(1, 6),
    size=st.integers(1, 4),
    stride=st.integers(1, 7),
    soft=st.booleans(),
    convolution=st.booleans(),
)
def test_gradients_are_those_of_one_large_graph(
    steps: int, size: int, stride: int, soft: bool, convolution: bool
) -> None:
    model = ConvNet((1, 4, 4), 3, width=2) if convolution else MLP((1, 4, 4), 3, width=5, depth=1)
    task = task_of(model, (1, 4, 4))
    start, batches = start_of(task), batches_of(task, steps, size, soft=soft)
    path = unroll(task, start, batches, RATE, stride)
    gradients = backward(task, path, batches, RATE, half_square(path.end)[1])
    end, x, y = one_large_graph(task, start, batches, RATE)
    assert torch.allclose(as_vector(path.end), as_vector(end), atol=1e-12)
    assert torch.allclose(gradients.x, x, atol=1e-10)
    if y is None:
        assert not gradients.y.any()
    else:
        assert torch.allclose(gradients.y, y, atol=1e-10)


def test_no_step_changes_nothing() -> None:
    task, start = SMOOTH, start_of(SMOOTH)
    batches = batches_of(task, 0, 2, soft=True)
    path = unroll(task, start, batches, RATE)
    gradients = backward(task, path, batches, RATE, path.end)
    assert torch.equal(as_vector(path.end), as_vector(start))
    assert torch.equal(as_vector(gradients.start), as_vector(start))
    assert gradients.learning_rate == 0


def test_long_paths_keep_the_root_of_their_weights_and_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = SMOOTH
    start = task.model.init(Rng(1).torch())
    batches = batches_of(task, 10, 2, soft=True)
    batches = Batches(batches.x.float(), batches.y.float())
    short = unroll(task, start, batches, RATE)
    assert len(short.kept) == 10
    monkeypatch.setattr(unroll_module, "KEPT_BYTES", 0)
    long = unroll(task, start, batches, RATE)
    assert (len(long.kept), long.stride) == (3, 4)
    at_end = subtract(short.end, start)
    one, other = (backward(task, path, batches, RATE, at_end) for path in (short, long))
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.y, other.y)
    assert one.learning_rate == other.learning_rate
    assert torch.equal(as_vector(short.end), as_vector(long.end))
    assert torch.equal(as_vector(short.end), as_vector(sgd_steps(task, start, batches, RATE)))


@dataclass(frozen=True)
class Chunked(MLP):
    @property
    def chunk(self) -> int:
        return 2


def test_a_batch_may_be_larger_than_a_chunk() -> None:
    whole = task_of(MLP((1, 4, 4), 3, width=5, depth=1), (1, 4, 4))
    parts = task_of(Chunked((1, 4, 4), 3, width=5, depth=1), (1, 4, 4))
    start, batches = start_of(whole), batches_of(whole, 3, 5, soft=True)
    results = []
    for task in (whole, parts):
        path = unroll(task, start, batches, RATE)
        results.append(backward(task, path, batches, RATE, path.end))
    assert torch.allclose(results[0].x, results[1].x, atol=1e-12)
    assert torch.allclose(results[0].y, results[1].y, atol=1e-12)
    assert results[0].learning_rate == pytest.approx(results[1].learning_rate, abs=1e-12)


def test_nothing_that_is_given_is_changed() -> None:
    task, start = SMOOTH, start_of(SMOOTH)
    batches = batches_of(task, 3, 2, soft=True)
    before = as_vector(start).clone(), batches.x.clone(), batches.y.clone()
    path = unroll(task, start, batches, RATE)
    at_end = {k: v.clone() for k, v in path.end.items()}
    backward(task, path, batches, RATE, at_end)
    assert torch.equal(as_vector(start), before[0])
    assert torch.equal(batches.x, before[1])
    assert torch.equal(batches.y, before[2])
    assert torch.equal(as_vector(at_end), as_vector(path.end))
    assert not any(w.requires_grad for w in path.end.values())


def test_soft_labels_start_at_90_percent_and_backpropagate() -> None:
    labels = torch.tensor([[0, 2], [1, 1]], dtype=torch.int32)
    logits = label_logits(labels, 3)
    soft = soft_labels(logits)
    assert soft.argmax(-1).tolist() == labels.tolist()
    assert torch.allclose(soft.max(-1).values, torch.tensor(0.9))
    tracked = logits.clone().requires_grad_(True)
    gradient = torch.randn(soft.shape, generator=Rng(0).torch())
    (expected,) = torch.autograd.grad(tracked.softmax(-1), tracked, gradient)
    assert torch.allclose(softmax_backward(soft, gradient), expected, atol=1e-6)
    assert torch.equal(soft_labels(label_logits(torch.tensor([0]), 1)), torch.ones(1, 1))
    assert torch.allclose(soft_labels(label_logits(torch.tensor([-100]), 4)), torch.tensor(0.25))
