"""Dropout is active in training and only there, from a named stream."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedstill
from fedstill.models import Model
from fedstill.models.separate import Separate
from fedstill.rng import Rng
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.steps.per_record import per_record_gradients
from tests.privacy.doors import toy_task


def dropping() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, 3)
    )


class ByHand(nn.Module):
    """Noise that ``vmap`` does not support: a mask drawn by NumPy's way of drawing, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 20), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x.flatten(1))
        if self.training:
            mask = torch.rand(20)
            hidden = hidden * torch.tensor([0.0 if m < 0.5 else 2.0 for m in mask.tolist()])
        result: Tensor = self.last(hidden)
        return result


def problem(module: nn.Module) -> tuple[Model, dict[str, Tensor], Tensor, Tensor]:
    model = Model.from_module(module)
    generator = Rng(5).torch()
    x, y = torch.randn(12, 1, 8, 8, generator=generator), torch.arange(12) % 3
    return model, model.init(generator), x, y


def test_training_mode_is_the_modules_own_and_evaluation_mode_too() -> None:
    module = dropping()
    model, params, x, _ = problem(module)
    draws = Rng(7).torch()
    got = model.train_apply(params, x, draws)
    second = model.train_apply(params, x, draws)
    torch.set_rng_state(Rng(7).torch().get_state())
    assert torch.equal(got, module.train()(x))
    assert torch.equal(second, module(x))  # the stream goes on
    assert torch.equal(model.apply(params, x), module.eval()(x))
    assert not torch.equal(got, second)


def test_the_global_generator_is_left_alone() -> None:
    model, params, x, _ = problem(dropping())
    before = torch.get_rng_state()
    model.train_apply(params, x, Rng(7).torch())
    assert torch.equal(before, torch.get_rng_state())


def test_a_gradient_has_a_mode() -> None:
    model, params, x, y = problem(dropping())
    task = toy_task(model)

    def gradient(draws: torch.Generator | None) -> list[Tensor]:
        return batch_gradient(task, tracked(params), x, y, draws=draws)[0]

    assert all(map(torch.equal, gradient(Rng(1).torch()), gradient(Rng(1).torch())))
    assert not all(map(torch.equal, gradient(Rng(1).torch()), gradient(Rng(2).torch())))
    assert not all(map(torch.equal, gradient(Rng(1).torch()), gradient(None)))


@pytest.mark.parametrize("make", [dropping, ByHand])
@pytest.mark.parametrize("separate", [True, False])
def test_in_a_private_gradient_a_record_does_not_depend_on_the_others(
    make: Callable[[], nn.Module], separate: bool
) -> None:
    """One draw for all records: a public stream read record after record would move the draws of
    all later records when one is removed, and clipping would bound nothing."""
    model, params, x, y = problem(make())
    task = toy_task(Separate(model) if separate else model)
    draws = Rng(3)
    together = per_record_gradients(task, params, x, y, draws).dense()
    without = per_record_gradients(task, params, x[1:], y[1:], draws).dense()
    alone = per_record_gradients(task, params, x[4:5], y[4:5], draws).dense()
    evaluation = per_record_gradients(task, params, x, y).dense()
    for name, rows in together.items():
        assert torch.allclose(rows[1:], without[name], atol=1e-6)
        assert torch.allclose(rows[4:5], alone[name], atol=1e-6)
    assert not torch.allclose(
        together["last.weight" if make is ByHand else "4.weight"],
        evaluation["last.weight" if make is ByHand else "4.weight"],
    )


@pytest.mark.parametrize("make", [dropping, ByHand])
def test_a_network_computed_record_by_record_draws_for_each(make: Callable[[], nn.Module]) -> None:
    model, params, x, _ = problem(make())
    same = x[:1].expand(6, -1, -1, -1)
    first, again = (Separate(model).train_apply(params, same, Rng(2).torch()) for _ in range(2))
    used = Separate(model)
    used.train_apply(params, x, Rng(8).torch())  # what a process did before changes nothing
    assert torch.equal(first, again)
    assert torch.equal(first, used.train_apply(params, same, Rng(2).torch()))
    assert len(first.unique(dim=0)) > 1


def network(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Dropout(0.5), nn.Linear(40, classes)
    )


NAME = "tests.models.test_training_mode:network"


def weights(out: Path, **options: Any) -> bytes:
    options = {"rounds": 2, "clients": 3, "model": NAME, **options}
    fedstill.run(options.pop("method", "fedavg"), out=out, **options)
    return (out / "model.safetensors").read_bytes()


def test_the_same_seed_gives_the_same_bits_whichever_worker(tmp_path: Path) -> None:
    alone = weights(tmp_path / "a", workers=1)
    assert weights(tmp_path / "b", workers=2) == alone


@pytest.mark.parametrize("method", ["fedavg", "feddm", "fedsgd"])
def test_resumed_or_not_the_bits_are_the_same(method: str, tmp_path: Path) -> None:
    fast = {"feddm": {"method.iterations": 2, "method.server_epochs": 1}}.get(method, {})
    whole = weights(tmp_path / "a", workers=1, method=method, set=fast)

    class Stop(fedstill.Observer):
        def round_done(self, metrics: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(Exception, match="interrupted"):
        weights(tmp_path / "b", workers=1, method=method, set=fast, observer=Stop())
    fedstill.run(out=tmp_path / "b", resume=True)
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == whole


def test_dropout_is_active_in_federated_training(tmp_path: Path) -> None:
    """Without it, the two networks below would end with equal weights."""
    ends = []
    for share in (0.0, 0.5):
        module = network((1, 8, 8), 10)
        torch.manual_seed(1)
        for part in module.modules():
            if isinstance(part, nn.Linear):
                part.reset_parameters()
            if isinstance(part, nn.Dropout):
                part.p = share
        result = fedstill.run(
            "fedavg", model=module, rounds=1, clients=2, out=tmp_path / f"{share}"
        )
        ends.append(result.params["1.weight"])
    assert not torch.equal(*ends)
