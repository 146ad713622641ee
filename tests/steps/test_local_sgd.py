import math

import pytest
import torch

from fedstill.methods import METHODS
from fedstill.rng import Rng
from fedstill.steps.local_sgd import local_sgd, steps_of
from fedstill.steps.training import Training
from fedstill.testing import toy_experiment
from fedstill.types import ClientContext

SETUP = toy_experiment(METHODS["fedavg"]())
START = SETUP.task.model.init(Rng(0).torch())


def context(client: int = 1) -> ClientContext:
    data = SETUP.runner.records.of(client, SETUP.task)
    return ClientContext(SETUP.task, 1, client, Rng(5).at("client", client), data=data)


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.5, 0.01)])
def test_it_is_the_librarys_sgd_over_the_same_batches(momentum: float, decay: float) -> None:
    ctx = context()
    trained = local_sgd(
        ctx,
        START,
        Training(epochs=2, batch_size=8, learning_rate=0.1, momentum=momentum),
        weight_decay=decay,
    )
    weights = {k: v.clone().requires_grad_(True) for k, v in START.items()}
    optimiser = torch.optim.SGD(weights.values(), 0.1, momentum, weight_decay=decay)
    for epoch in range(2):
        order = torch.randperm(len(ctx.records), generator=ctx.rng.at("order", epoch).torch())
        for positions in order.split(8):
            x, y = ctx.records.take(positions)
            loss = torch.nn.functional.cross_entropy(SETUP.task.model.apply(weights, x), y)
            optimiser.zero_grad()
            for weight in weights.values():  # the library skips what has no gradient at all
                weight.grad = torch.zeros_like(weight)
            loss.backward()
            optimiser.step()
    for name, weight in weights.items():
        assert torch.allclose(trained[name], weight, atol=1e-5), name


def test_a_correction_is_added_to_every_gradient() -> None:
    push = {k: torch.ones_like(v) for k, v in START.items()}
    options = {"epochs": 1, "batch_size": 1000, "learning_rate": 0.1}
    plain = local_sgd(context(), START, Training(**options))  # type: ignore[arg-type]
    pushed = local_sgd(context(), START, Training(**options), correction=lambda _: push)  # type: ignore[arg-type]
    for name in START:
        assert torch.allclose(
            plain[name] - pushed[name], torch.full_like(push[name], 0.1), atol=1e-6
        )


def test_steps_and_progress() -> None:
    seen: list[tuple[int, int]] = []
    data = SETUP.runner.records.of(2, SETUP.task)
    ctx = ClientContext(
        SETUP.task, 1, 2, Rng(0), data=data, progress=lambda step, steps: seen.append((step, steps))
    )
    local_sgd(ctx, START, Training(epochs=2, batch_size=7, learning_rate=0.1))
    expected = 2 * math.ceil(len(data) / 7)
    assert steps_of(len(data), 2, 7) == expected
    assert seen == [(i + 1, expected) for i in range(expected)]


def test_steps_instead_of_epochs() -> None:
    epoch = math.ceil(len(context().records) / 7)
    options = {"batch_size": 7, "learning_rate": 0.1}
    by_epochs = local_sgd(context(), START, Training(epochs=2, **options))  # type: ignore[arg-type]
    by_steps = local_sgd(context(), START, Training(epochs=9, **options), steps=2 * epoch)  # type: ignore[arg-type]
    shorter = local_sgd(context(), START, Training(epochs=9, **options), steps=epoch + 1)  # type: ignore[arg-type]
    assert steps_of(100, 9, 7, steps=5) == 5
    assert all(torch.equal(by_epochs[k], by_steps[k]) for k in START)
    assert not all(torch.equal(by_epochs[k], shorter[k]) for k in START)


def test_every_record_is_seen_once_per_epoch_in_an_order_that_changes() -> None:
    ctx = context()
    orders = [
        torch.randperm(len(ctx.records), generator=ctx.rng.at("order", epoch).torch()).tolist()
        for epoch in (0, 1)
    ]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(len(ctx.records)))
    assert orders[0] != orders[1]


def test_only_several_batches_need_an_order() -> None:
    data = context().data
    both = [ClientContext(SETUP.task, 1, 1, Rng(seed), data=data) for seed in (5, 6)]

    def trained(ctx: ClientContext, batch: int) -> torch.Tensor:
        training = Training(epochs=2, batch_size=batch, learning_rate=0.1)
        return torch.cat([v.flatten() for v in local_sgd(ctx, START, training).values()])

    number = len(both[0].records)
    assert torch.equal(*(trained(ctx, number) for ctx in both))
    assert not torch.equal(*(trained(ctx, number - 1) for ctx in both))
