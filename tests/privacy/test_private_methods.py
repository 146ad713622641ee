"""Private forms: without noise and clipping they are the methods themselves."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.methods.fedavg import FedAvg
from fedstill.methods.feddm import FedDM
from fedstill.methods.feddualmatch import FedDualMatch
from fedstill.methods.fedprox import FedProx
from fedstill.methods.fedsgd import FedSGD
from fedstill.methods.psg import PSG
from fedstill.methods.shared.messages import LastSet, Region, Weights
from fedstill.records import SyntheticSet
from fedstill.rng import Rng
from fedstill.steps.classes import noise_for
from fedstill.steps.gradient_matching import grad_distance
from fedstill.steps.matching import Matching
from fedstill.types import ClientContext
from tests.methods.test_fedgloss import mean_gradient, stepped
from tests.privacy.doors import private_context, some_records, toy_task, without

DM: dict[str, Any] = {"images_per_class": 2, "initial": "noise", "iterations": 3}


def both(tmp_path: Path, method: Any, message: Any, state: Any = None, **options: Any) -> Any:
    """The reply of the plain method and of its private form, on the same records."""
    task = toy_task()
    records = some_records(task, 24)
    plain = ClientContext(task, 1, 0, Rng(3), data=records)
    private = private_context(tmp_path, records, task, **options)
    down = message(task.model.init(Rng(1).torch()))
    return method.client(plain, down, state)[0], method.client(private, down, state)[0]


@pytest.mark.parametrize(
    "method",
    [
        FedAvg(batch_size=24, local_epochs=2, momentum=0.5, weight_decay=0.01),
        FedProx(batch_size=24, local_epochs=3, mu=0.5),
        FedSGD(),
    ],
)
def test_averaging_without_noise_is_averaging(tmp_path: Path, method: Any) -> None:
    plain, private = both(tmp_path, method, Weights)
    assert private.records == plain.records == 24  # the size that was declared public
    for name, value in plain.update.items():
        assert torch.allclose(private.update[name], value, atol=1e-5)


@pytest.mark.parametrize("target", ["features", "gradient"])
def test_feddm_without_noise_is_feddm(tmp_path: Path, target: Any) -> None:
    method = FedDM(**DM, target=target, release_steps=1)
    plain, private = both(tmp_path, method, Weights)
    assert private.synthetic.labels.tolist() == plain.synthetic.labels.tolist()
    assert torch.allclose(private.synthetic.images, plain.synthetic.images, atol=1e-4)


@pytest.mark.parametrize(("target", "squared"), [("features", False), ("gradient", True)])
def test_feddualmatch_without_noise_is_feddualmatch(
    tmp_path: Path, target: Any, squared: bool
) -> None:
    method = FedDualMatch(**DM, target=target, steps_per_draw=1, release_steps=1, squared=squared)
    plain, private = both(tmp_path, method, lambda params: Region(params, 2.0))
    assert torch.allclose(private.synthetic.images, plain.synthetic.images, atol=1e-4)


def test_psg_without_noise_is_gradient_matching(tmp_path: Path) -> None:
    method = PSG(images_per_class=1, restarts=1, gradients=2, pixel_steps=1)
    plain, private = both(tmp_path, method, Weights, LastSet())
    assert torch.allclose(private.synthetic.images, plain.synthetic.images, atol=1e-3)


def test_psg_matches_several_batches_at_each_point(tmp_path: Path) -> None:
    task = toy_task()
    records = some_records(task, 24)
    down = Weights(task.model.init(Rng(1).torch()))
    method = PSG(images_per_class=1, restarts=2, gradients=2, batches=3, pixel_steps=1)
    assert method.private_form(1.0).accesses == 12
    ctx = private_context(tmp_path, records, task, sigma=1.0, clip=1.0)
    method.client(ctx, down, LastSet())
    assert ctx.private._ledger.count == 12  # type: ignore[union-attr]


def test_psg_by_the_obvious_loop() -> None:
    task = toy_task()
    records = some_records(task, 24)
    ctx = ClientContext(task, 1, 0, Rng(3), data=records)
    down = Weights(task.model.init(Rng(1).torch()))
    method = PSG(
        images_per_class=1,
        restarts=1,
        gradients=2,
        batches=2,
        pixel_steps=1,
        pixel_optimiser="sgd",
        network_steps=1,
        real_batch=24,
    )
    sent = method.client(ctx, down, LastSet())[0].synthetic
    labels = records.labels.unique()
    noise = noise_for(ctx, len(labels), 1, ctx.rng.at("images").torch())
    pixels, velocity = noise.flatten(0, 1), torch.zeros_like(noise.flatten(0, 1))
    weights = task.model.init(ctx.rng.at("network", 0).torch())
    x, y = records.all()
    for _point in range(2):
        for _batch in range(2):
            leaf = pixels.clone().requires_grad_(True)
            own = mean_gradient(ctx, weights, leaf, labels, twice=True)
            distance = grad_distance(mean_gradient(ctx, weights, x, y), own)
            velocity = 0.5 * velocity + torch.autograd.grad(distance, leaf)[0]
            pixels = pixels - 0.1 * velocity
        weights = stepped(ctx, weights, SyntheticSet(pixels, labels), 0.05)
    assert torch.allclose(sent.images, pixels, atol=1e-5)


def test_several_steps_on_one_release_cost_one_access(tmp_path: Path) -> None:
    task = toy_task()
    records = some_records(task, 24)
    down = Weights(task.model.init(Rng(1).torch()))
    method = FedDM(**{**DM, "iterations": 2}, release_steps=7)
    ctx = private_context(tmp_path, records, task, sigma=1.0, clip=1.0)
    few = method.client(ctx, down, None)[0].synthetic.images
    assert ctx.private._ledger.count == 2  # type: ignore[union-attr]
    once = dataclasses.replace(method, release_steps=1)
    again = private_context(tmp_path / "b", records, task, sigma=1.0, clip=1.0)
    assert not torch.allclose(few, once.client(again, down, None)[0].synthetic.images)


@pytest.mark.parametrize("target", ["features", "gradient"])
def test_a_class_that_loses_its_only_record_is_still_sent(tmp_path: Path, target: Any) -> None:
    task = toy_task()
    records = some_records(task, 1)
    down = Weights(task.model.init(Rng(1).torch()))
    method = FedDM(**DM, target=target)
    for number, held in enumerate((records, without(records, 0))):
        ctx = private_context(tmp_path / str(number), held, task, sigma=1.0, clip=1.0, size=20)
        sent = method.client(ctx, down, None)[0].synthetic
        assert sent.labels.tolist() == [0, 0, 1, 1, 2, 2]
        assert bool(torch.isfinite(sent.images).all())


@pytest.mark.parametrize("squared", [True, False])
def test_distance_gradient_is_the_gradient_of_the_distance(squared: bool) -> None:
    matching = Matching(squared=squared)
    rows = torch.randn(4, 5, generator=Rng(0).torch())
    rows[2] = 0
    tracked = rows.clone().requires_grad_(True)
    (expected,) = torch.autograd.grad(matching.distance(tracked).sum(), tracked)
    assert torch.allclose(matching.distance_gradient(rows), expected, atol=1e-6)
