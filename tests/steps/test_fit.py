import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedstill.models import MLP
from fedstill.rng import Rng
from fedstill.scaling import Scaling
from fedstill.steps.arithmetic import norm, subtract
from fedstill.steps.augment import draw_augmentation
from fedstill.steps.distil import Plateau
from fedstill.steps.fit import balanced_batches, descend, fit
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.steps.training import Schedule, Training
from fedstill.types import Task

MODEL = MLP((1, 2, 2), 3, depth=0)
TASK = Task(MODEL, (1, 2, 2), 3, 1, 1, Scaling((), ()))
START = MODEL.init(Rng(0).torch())


def images(number: int = 10) -> Tensor:
    return torch.randn(number, 1, 2, 2, generator=Rng(1).torch())


LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])


def test_one_full_batch_step_is_gradient_descent() -> None:
    x = images()
    leaves = {k: v.clone().requires_grad_(True) for k, v in START.items()}
    loss = TASK.loss(MODEL.apply(leaves, x), LABELS).mean()
    gradient = torch.autograd.grad(loss, list(leaves.values()))
    after = fit(
        TASK, START, x, LABELS, Rng(0), Training(learning_rate=0.5, batch_size=10, epochs=1)
    )
    for (name, weight), g in zip(START.items(), gradient, strict=True):
        assert torch.allclose(after[name], weight - 0.5 * g, atol=1e-6)


def test_descend_is_one_full_batch_step() -> None:
    x = images()
    whole = fit(
        TASK, START, x, LABELS, Rng(0), Training(learning_rate=0.5, batch_size=10, epochs=1)
    )
    once = descend(TASK, START, x, LABELS, 0.5)
    assert all(torch.allclose(once[k], v, atol=1e-6) for k, v in whole.items())


def test_every_step_sees_the_batch_through_a_change_of_its_own() -> None:
    x, rng = images(), Rng(4)
    changes = rng.at("augment").torch()
    expected = START
    for _ in range(3):
        seen = draw_augmentation("dsa", changes, flip=True)(x)
        expected = descend(TASK, expected, seen, LABELS, 0.5)
    options: dict[str, Any] = {"learning_rate": 0.5, "batch_size": 10, "epochs": 3}
    after = fit(TASK, START, x, LABELS, rng, Training(augment="dsa", flip=True, **options))
    assert all(torch.allclose(after[k], v, atol=1e-6) for k, v in expected.items())
    plain = fit(TASK, START, x, LABELS, rng, Training(**options))
    assert any(not torch.allclose(after[k], v, atol=1e-4) for k, v in plain.items())


def test_equals_torch_sgd_with_momentum() -> None:
    x = images()
    ours = fit(
        TASK,
        START,
        x,
        LABELS,
        Rng(0),
        Training(learning_rate=0.1, batch_size=10, momentum=0.9),
        iterations=5,
    )
    leaves = {k: v.clone().requires_grad_(True) for k, v in START.items()}
    optimiser = torch.optim.SGD(leaves.values(), lr=0.1, momentum=0.9)
    for _ in range(5):
        optimiser.zero_grad()
        TASK.loss(MODEL.apply(leaves, x), LABELS).mean().backward()
        optimiser.step()
    assert all(torch.allclose(ours[k], v.detach(), atol=1e-5) for k, v in leaves.items())


def test_hard_labels_are_one_hot_soft_labels() -> None:
    x = images()
    soft = torch.nn.functional.one_hot(LABELS, 3).float()
    options: dict[str, Any] = {"learning_rate": 0.1, "batch_size": 4, "epochs": 3}
    a = fit(TASK, START, x, LABELS, Rng(0), Training(**options))
    b = fit(TASK, START, x, soft, Rng(0), Training(**options))
    assert all(torch.allclose(a[k], b[k], atol=1e-6) for k in a)


def test_weights_stand_for_repetition() -> None:
    x, weights = images(3), torch.tensor([2.0, 1.0, 0.0])
    repeated = torch.cat([x[:1], x[:1], x[1:2]])
    a = fit(
        TASK,
        START,
        x,
        LABELS[:3],
        Rng(0),
        Training(learning_rate=0.3, batch_size=3, epochs=1),
        weights=weights,
    )
    b = fit(
        TASK,
        START,
        repeated,
        torch.tensor([0, 0, 1]),
        Rng(0),
        Training(learning_rate=0.3, batch_size=3, epochs=1),
    )
    assert all(torch.allclose(a[k], b[k], atol=1e-6) for k in a)


def test_no_weights_are_weights_of_one_bit_for_bit() -> None:
    plain, _ = batch_gradient(TASK, tracked(START), images(), LABELS)
    ones, _ = batch_gradient(TASK, tracked(START), images(), LABELS, torch.ones(10))
    assert all(torch.equal(a, b) for a, b in zip(plain, ones, strict=True))


@pytest.mark.parametrize("radius", [0.0, 0.05, 1e6])
def test_every_step_stays_in_the_ball(radius: float) -> None:
    after = fit(
        TASK,
        START,
        images(),
        LABELS,
        Rng(0),
        Training(learning_rate=1.0, batch_size=4, epochs=9),
        radius=radius,
    )
    distance = float(norm(subtract(after, START)))
    assert distance <= radius * (1 + 1e-5)
    free = fit(
        TASK, START, images(), LABELS, Rng(0), Training(learning_rate=1.0, batch_size=4, epochs=9)
    )
    if radius == 1e6:
        assert all(torch.equal(after[k], free[k]) for k in after)
    elif radius:
        assert distance > 0.9 * radius


def test_every_image_once_per_epoch_and_progress_is_reported() -> None:
    seen: list[tuple[int, int]] = []
    marks = torch.arange(10.0).view(10, 1, 1, 1).expand(10, 1, 2, 2)
    visited: list[float] = []

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        visited.extend(labels.tolist())
        return logits.sum(1)

    task = Task(MODEL, (1, 2, 2), 3, 1, 1, Scaling((), ()), loss=loss)
    fit(
        task,
        START,
        marks,
        torch.arange(10),
        Rng(0),
        Training(learning_rate=0.0, batch_size=4, epochs=2),
        progress=lambda step, steps: seen.append((step, steps)),
    )
    assert sorted(visited[:10]) == sorted(visited[10:]) == list(range(10))
    assert visited[:10] != visited[10:]
    assert seen == [(i, 6) for i in range(1, 7)]


def test_iterations_replace_epochs() -> None:
    two = fit(TASK, START, images(), LABELS, Rng(0), Training(0.1, batch_size=4, epochs=2))
    six = fit(TASK, START, images(), LABELS, Rng(0), Training(0.1, batch_size=4), iterations=6)
    assert all(torch.equal(two[k], six[k]) for k in two)


@pytest.mark.parametrize("schedule", ["step", "cosine"])
def test_a_schedule_lowers_the_rate_on_the_way(schedule: Schedule) -> None:
    """Full batches: each step is one of plain descent at the scheduled rate."""
    training = Training(0.5, batch_size=10, schedule=schedule)
    expected = START
    for step in range(4):
        expected = descend(TASK, expected, images(), LABELS, training.rate(step, 4))
    ours = fit(TASK, START, images(), LABELS, Rng(0), training, iterations=4)
    assert all(torch.allclose(ours[k], v, atol=1e-6) for k, v in expected.items())
    assert training.rate(3, 4) < training.rate(0, 4) == 0.5


def test_balanced_batches_have_equal_classes() -> None:
    classes = torch.tensor([0] * 90 + [3] * 7 + [1] * 3)
    batches = balanced_batches(classes, None, 32, Rng(0))
    drawn = [next(batches) for _ in range(200)]
    for rows in drawn:
        counts = torch.bincount(classes[rows], minlength=4)
        assert counts[2] == 0
        assert set(counts[[0, 1, 3]].tolist()) <= {10, 11}
        assert len(rows[classes[rows] == 0].unique()) == int(counts[0])  # none twice, of so many
    times = torch.bincount(torch.cat(drawn), minlength=100).double()
    assert torch.allclose(times[97:] / times.sum(), torch.tensor(1 / 9).double(), atol=0.01)


def test_balanced_batches_draw_by_weight_within_a_class() -> None:
    classes, weights = torch.tensor([0, 0, 1, 1]), torch.tensor([3.0, 1.0, 0.0, 0.2])
    batches = balanced_batches(classes, weights, 8, Rng(0))
    rows = torch.cat([next(batches) for _ in range(500)])
    shares = torch.bincount(rows, minlength=4) / len(rows)
    expected = torch.tensor([0.375, 0.125, 0.0, 0.5])
    assert torch.allclose(shares, expected, atol=0.02)


def test_balanced_training_weights_classes_and_not_images() -> None:
    """Of nine images of one class and one of another, the second class gets half of the loss."""
    x = images()
    labels = torch.tensor([0] * 9 + [1])
    options: dict[str, Any] = {"iterations": 150}
    how = Training(0.1, batch_size=64, balanced=True)
    balanced = fit(TASK, START, x, labels, Rng(0), how, **options)
    weights = torch.tensor([10 / 18] * 9 + [10 / 2])
    whole = Training(0.1, batch_size=10)
    weighted = fit(TASK, START, x, labels, Rng(0), whole, weights=weights, **options)
    plain = fit(TASK, START, x, labels, Rng(0), whole, **options)
    near = float(norm(subtract(balanced, weighted)))
    assert near < 0.25 * float(norm(subtract(balanced, plain)))


def test_an_average_of_weights_is_the_running_mean_of_the_steps() -> None:
    x, decay, whole = images(), 0.8, Training(0.5, batch_size=10)
    steps = [fit(TASK, START, x, LABELS, Rng(0), whole, iterations=n) for n in range(1, 5)]
    shares = torch.tensor([decay ** (4 - n) for n in range(1, 5)])
    how = replace(whole, average=decay)
    averaged = fit(TASK, START, x, LABELS, Rng(0), how, iterations=4)
    for name, value in averaged.items():
        parts = torch.stack([step[name] for step in steps])
        mean = torch.einsum("s,s...->...", shares / shares.sum(), parts)
        assert torch.allclose(value, mean, atol=1e-6)


def test_the_input_is_not_changed() -> None:
    before = {k: v.clone() for k, v in START.items()}
    fit(
        TASK,
        START,
        images(),
        LABELS,
        Rng(0),
        Training(learning_rate=1.0, batch_size=4, epochs=1),
        radius=0.1,
    )
    assert all(torch.equal(v, before[k]) for k, v in START.items())


def test_a_plateau_is_noticed_and_a_fall_is_not() -> None:
    falling = Plateau(patience=5, tolerance=0.01)
    assert not any(falling.settled(torch.tensor(100 * 0.9**i)) for i in range(100))
    flat = Plateau(patience=5, tolerance=0.01)
    noticed = next(i for i in range(100) if flat.settled(torch.tensor(1.0)))
    assert noticed == 5
    assert math.isclose(flat.smooth, 1.0)
    never = Plateau(patience=0, tolerance=0.01)
    assert not any(never.settled(torch.tensor(1.0)) for _ in range(100))
