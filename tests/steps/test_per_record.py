"""Per-record gradients: one record after the other is the reference."""

import pytest
import torch
from torch import Tensor, nn

from fedstill.models import MLP, ConvNet, Model, ResNet18
from fedstill.privacy.mechanism import clip_factors
from fedstill.rng import Rng
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.steps.per_record import per_record_gradients, weight_gradients
from fedstill.steps.record_gradients import Gradients, Outer
from fedstill.types import Params, Task
from tests.privacy.doors import some_records, toy_task


class Twice(nn.Module):
    """Uses one layer twice: its gradients add up, their norms do not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(64, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x.flatten(1)))
        return self.last(torch.tanh(self.again(torch.tanh(self.again(x)))))  # type: ignore[no-any-return]


MODELS: dict[str, Model] = {
    "convnet": ConvNet((1, 8, 8), 3, width=4),
    "group": ConvNet((1, 8, 8), 3, width=8, norm="group", activation="gelu"),
    "no norm": ConvNet((1, 8, 8), 3, width=4, norm="none", pooling="max"),
    "mlp": MLP((1, 8, 8), 3, width=5),
    "resnet": ResNet18((1, 8, 8), 3, width=4),
    "strided": Model.from_module(
        nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.GroupNorm(2, 4), nn.ReLU(inplace=True),
            nn.Flatten(), nn.Linear(64, 3),
        )
    ),
    "layer norm": Model.from_module(
        nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 3, bias=False))
    ),
    "twice": Model.from_module(Twice()),
}  # fmt: skip


def one_by_one(task: Task, params: Params, x: Tensor, y: Tensor) -> list[Params]:
    gradients = []
    for i in range(len(x)):
        parts, _ = batch_gradient(task, tracked(params), x[i : i + 1], y[i : i + 1])
        gradients.append(dict(zip(params, parts, strict=True)))
    return gradients


@pytest.mark.parametrize("name", MODELS)
def test_it_is_one_record_after_the_other(name: str) -> None:
    task = toy_task(MODELS[name])
    x, y = some_records(task, 4).all()
    params = task.model.init(Rng(2).torch())
    got = per_record_gradients(task, params, x, y)
    dense, expected = got.dense(), one_by_one(task, params, x, y)
    norms = got.squared_norms().sqrt()
    shares = torch.tensor([[0.5, 0.0, 2.0, 1.0], [1.0, 1.0, 0.0, 0.0]])
    sums = got.weighted(shares)
    assert list(dense) == list(params)
    for i, gradient in enumerate(expected):
        length = torch.cat([v.flatten() for v in gradient.values()]).norm()
        assert float(norms[i]) == pytest.approx(float(length), rel=1e-4)
    for key in params:
        stacked = torch.stack([gradient[key] for gradient in expected])
        assert torch.allclose(dense[key], stacked, atol=2e-5)
        wanted = torch.einsum("kb,b...->k...", shares, stacked)
        assert torch.allclose(sums[key], wanted, atol=1e-4)


def test_matrices_of_known_layers_are_not_multiplied_out() -> None:
    task = toy_task(MODELS["mlp"])
    params = task.model.init(Rng(2).torch())
    got = per_record_gradients(task, params, *some_records(task, 4).all())
    assert isinstance(got.parts["linear.weight"], Outer)
    assert weight_gradients(task, params).floats == 5 + 5 + 3
    other = toy_task(MODELS["layer norm"])
    weights = other.model.init(Rng(2).torch())
    assert weight_gradients(other, weights).floats == other.model.size


def test_inputs_and_global_state_are_left_alone() -> None:
    task = toy_task()
    x, y = some_records(task, 3).all()
    params = task.model.init(Rng(2).torch())
    before = {k: v.clone() for k, v in params.items()}
    per_record_gradients(task, params, x, y)
    assert all(torch.equal(v, before[k]) for k, v in params.items())
    assert not any(v.requires_grad for v in params.values())
    assert not x.requires_grad


@pytest.mark.parametrize("clip", [1e-6, 1.0])
@pytest.mark.parametrize("powers", [(-30, 18), (-40, 38), (18, -23), (0, 17), (38, -38), (-8, 4)])
def test_the_clip_holds_for_columns_and_rows_of_any_size(
    clip: float, powers: tuple[int, int]
) -> None:
    """One may be so small that its square vanishes in single precision, the other very large: a
    server that chooses the weights can make them so."""
    draw = Rng(1).torch()
    column = torch.rand(3, 5, generator=draw) * 10.0 ** powers[0]
    row = torch.rand(3, 4000, generator=draw) * 10.0 ** powers[1]
    vectors = Gradients({"linear": Outer.of(column, row)})
    exact = column.double().norm(dim=1) * row.double().norm(dim=1)
    assert torch.allclose(vectors.squared_norms().sqrt(), exact, rtol=1e-5)
    for record in range(3):
        share = torch.where(torch.arange(3) == record, clip_factors(vectors, clip), 0.0)
        clipped = vectors.weighted(share)["linear"].double()
        assert float(clipped.norm()) == pytest.approx(min(clip, float(exact[record])), rel=1e-4)
