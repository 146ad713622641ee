from dataclasses import replace

import pytest
import torch

from fedstill.methods import METHODS
from fedstill.rng import Rng
from fedstill.steps.gradient import batch_gradient, full_gradient, tracked
from fedstill.testing import toy_experiment

SETUP = toy_experiment(METHODS["fedavg"]())
TASK = SETUP.task
PARAMS = TASK.model.init(Rng(0).torch())


def reference(x: torch.Tensor, y: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    weights = tracked(PARAMS)
    loss = torch.nn.functional.cross_entropy(TASK.model.apply(weights, x), y)
    loss.backward()
    zero = {k: torch.zeros_like(v) for k, v in weights.items()}
    return {k: v.grad if v.grad is not None else zero[k] for k, v in weights.items()}, loss


@pytest.mark.parametrize("size", [1, 7, 50])
def test_batch_gradient_in_chunks_is_the_gradient(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(TASK.model), "chunk", 8)
    x, y = SETUP.test.take(torch.arange(size))
    gradient, loss = batch_gradient(TASK, tracked(PARAMS), x, y)
    expected, expected_loss = reference(x, y)
    assert torch.allclose(loss, expected_loss, atol=1e-6)
    for mine, theirs in zip(gradient, expected.values(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)


def test_full_gradient_is_the_gradient_of_the_mean_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(TASK.model), "chunk", 16)
    records = SETUP.runner.records.of(2, SETUP.task)
    gradient, loss = full_gradient(TASK, PARAMS, records)
    expected, expected_loss = reference(*records.all())
    assert torch.allclose(loss, expected_loss, atol=1e-6)
    for name, theirs in expected.items():
        assert torch.allclose(gradient[name], theirs, atol=1e-6)


def test_half_precision_changes_the_gradient_a_little_and_not_its_type() -> None:
    x = torch.randn(40, 1, 8, 8, generator=Rng(0).torch())
    y, params = torch.arange(40) % 3, tracked(PARAMS)
    exact, loss = batch_gradient(TASK, params, x, y)
    half = replace(TASK, precision=torch.bfloat16)
    rough, rough_loss = batch_gradient(half, params, x, y, mixed=True)
    assert all(part.dtype == torch.float32 for part in rough)
    assert float(rough_loss) == pytest.approx(float(loss), rel=0.02)
    a, b = (torch.cat([part.flatten() for part in parts]) for parts in (exact, rough))
    assert 0 < float((a - b).norm() / a.norm()) < 0.05
