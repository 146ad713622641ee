import math
from dataclasses import replace

import pytest
import torch

from fedstill.models import MLP, ConvNet
from fedstill.records import SyntheticSet
from fedstill.rng import Rng
from fedstill.scaling import Scaling
from fedstill.steps.from_scratch import train_from_scratch
from fedstill.steps.training import SCHEDULES, Training
from fedstill.tune.training import DEFAULT_TRAINING, train
from fedstill.types import Params, Task


def problem(images: int = 6) -> tuple[Task, SyntheticSet]:
    model = MLP((4,), 3, width=5, depth=1)
    task = Task(model, (4,), 3, 1, 1, Scaling((), ()))
    x = torch.randn(images, 4, generator=Rng(1).torch())
    return task, SyntheticSet(x, torch.arange(images) % 3)


def last(task: Task, synthetic: SyntheticSet, training: Training, seed: int = 0) -> Params:
    return list(train(task, synthetic, training, Rng(seed)))[-1]


def test_two_epochs_by_the_obvious_loop() -> None:
    task, synthetic = problem()
    training = Training(0.3, 0.5, batch_size=4, epochs=2, schedule="cosine")
    found = last(task, synthetic, training)

    weights = task.model.init(Rng(0).at("init").torch())
    velocity = {k: torch.zeros_like(v) for k, v in weights.items()}
    step = 0
    for epoch in range(2):
        order = torch.randperm(6, generator=Rng(0).at("order", epoch).torch())
        for rows in (order[:4], order[4:]):
            leaves = {k: v.clone().requires_grad_() for k, v in weights.items()}
            logits = task.model.apply(leaves, synthetic.images[rows])
            loss = torch.nn.functional.cross_entropy(logits, synthetic.labels[rows])
            gradients = torch.autograd.grad(loss, list(leaves.values()))
            rate = 0.3 * (1 + math.cos(math.pi * step / 4)) / 2
            for name, gradient in zip(leaves, gradients, strict=True):
                velocity[name] = 0.5 * velocity[name] + gradient
                weights[name] = weights[name] - rate * velocity[name]
            step += 1
    for name, weight in weights.items():
        assert torch.allclose(found[name], weight, atol=1e-6)


def test_without_a_schedule_and_in_one_batch_it_is_train_from_scratch() -> None:
    """Order does not matter in full batches, so the two loops must agree."""
    task, synthetic = problem()
    ours = last(task, synthetic, Training(0.1, 0.9, batch_size=6, epochs=1, schedule="constant"))
    theirs = train_from_scratch(task, synthetic, Rng(0), Training(0.1, 0.9, 6, epochs=1))
    for name, weight in ours.items():
        assert torch.allclose(weight, theirs[name], atol=1e-6)


def test_schedules_begin_with_the_whole_rate_and_never_rise() -> None:
    for factor in SCHEDULES.values():
        values = [factor(step / 20) for step in range(21)]
        assert values[0] == 1.0
        assert values == sorted(values, reverse=True)
    assert SCHEDULES["step"](0.49) == 1.0
    assert SCHEDULES["step"](0.5) == pytest.approx(0.1)


def test_augmentation_changes_what_is_seen_and_is_reproducible() -> None:
    model = ConvNet((1, 8, 8), 3, width=4)
    task = Task(model, model.shape, 3, 1, 1, Scaling((), ()))
    synthetic = SyntheticSet(torch.randn(6, 1, 8, 8, generator=Rng(1).torch()), torch.arange(6) % 3)
    plain, augmented, again = (
        last(task, synthetic, replace(DEFAULT_TRAINING, epochs=2, batch_size=3, augment=augment))
        for augment in ("none", "dsa", "dsa")
    )
    assert all(torch.equal(augmented[name], again[name]) for name in plain)
    assert any(not torch.equal(augmented[name], plain[name]) for name in plain)


def test_soft_labels_are_trained_on() -> None:
    task, synthetic = problem()
    soft = SyntheticSet(synthetic.images, torch.nn.functional.one_hot(synthetic.labels, 3).float())
    training = replace(DEFAULT_TRAINING, epochs=2, batch_size=6)
    for name, weight in last(task, synthetic, training).items():
        assert torch.allclose(weight, last(task, soft, training)[name], atol=1e-6)
