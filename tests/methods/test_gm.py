"""Condensation by gradient matching: a step by the obvious loop, the limits, and the union."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.methods.gm import GM
from fedstill.methods.local_gm import Condensed, Continue, LocalGM
from fedstill.methods.shared.messages import LastSet
from fedstill.methods.shared.surrogate import Distilled
from fedstill.records import SyntheticSet
from fedstill.rng import Rng
from fedstill.runs.sets import load_set
from fedstill.steps.augment import draw_augmentation
from fedstill.steps.fit import fit
from fedstill.steps.gradient_matching import grad_distance
from fedstill.steps.scores import score
from fedstill.steps.training import Training
from fedstill.testing import as_vector, bits, toy_experiment, toy_run
from fedstill.types import Reply, ServerContext
from fedstill.wire import tree
from tests.methods.test_feddm import digits
from tests.methods.test_fedgloss import mean_gradient

ONE = LocalGM(images_per_class=2, networks=1, matching_steps=1, server_epochs=3)


@pytest.mark.parametrize("augment", ["none", "dsa"])
def test_one_step_is_the_obvious_loop_over_classes(augment: Any) -> None:
    ctx = digits(0, 0, 0, 2, 2, 2, 2)
    method = dataclasses.replace(ONE, augment=augment, pixel_learning_rate=0.7)
    before = dataclasses.replace(method, networks=0).client(ctx, Continue(), LastSet())[0].synthetic
    after = method.client(ctx, Continue(), LastSet())[0]
    weights = ctx.task.model.init(ctx.rng.at("network", 0, "init").torch())
    changes = ctx.rng.at("network", 0, "augment").torch()
    x, y = ctx.records.all()
    pixels = before.images.clone().requires_grad_(True)
    total = torch.zeros(())
    for label in (0, 2):
        change = draw_augmentation(augment, changes, flip=False)
        target = mean_gradient(ctx, weights, change(x[y == label]), y[y == label])
        rows = before.labels == label
        gradient = mean_gradient(
            ctx, weights, change(pixels[rows]), before.labels[rows], twice=True
        )
        total = total + grad_distance(target, gradient)
    expected = pixels - 0.7 * torch.autograd.grad(total, pixels)[0]
    assert torch.allclose(after.synthetic.images, expected, atol=1e-5)
    assert after.loss == pytest.approx(float(total.detach()) / 2, rel=1e-4)


def test_the_second_point_is_after_training_on_the_images() -> None:
    ctx = digits(0, 0, 0, 2, 2)
    method = dataclasses.replace(ONE, matching_steps=2, network_epochs=3, pixel_momentum=0.0)
    first = dataclasses.replace(method, matching_steps=1).client(ctx, Continue(), LastSet())[0]
    both = method.client(ctx, Continue(), LastSet())[0].synthetic
    condensed = first.synthetic
    weights = ctx.task.model.init(ctx.rng.at("network", 0, "init").torch())
    velocity = [torch.zeros_like(v) for v in weights.values()]
    for _ in range(3):  # four images are one batch
        gradient = mean_gradient(ctx, weights, condensed.images, condensed.labels)
        velocity = [0.5 * v + g for v, g in zip(velocity, gradient, strict=True)]
        weights = {k: v - 0.01 * g for (k, v), g in zip(weights.items(), velocity, strict=True)}
    x, y = ctx.records.all()
    pixels = condensed.images.clone().requires_grad_(True)
    total = torch.zeros(())
    for label in (0, 2):
        target = mean_gradient(ctx, weights, x[y == label], y[y == label])
        rows = condensed.labels == label
        total = total + grad_distance(
            target, mean_gradient(ctx, weights, pixels[rows], condensed.labels[rows], twice=True)
        )
    expected = pixels - 0.1 * torch.autograd.grad(total, pixels)[0]
    assert torch.allclose(both.images, expected, atol=1e-5)


def test_without_networks_the_images_stay_records() -> None:
    ctx = digits(0, 0, 0, 2, 2)
    still, _ = dataclasses.replace(ONE, networks=0).client(ctx, Continue(), LastSet())
    x, y = ctx.records.all()
    for image, label in zip(still.synthetic.images, still.synthetic.labels, strict=True):
        assert any(torch.equal(image, record) for record in x[y == label])
    assert still.loss == 0.0


def test_the_next_round_continues_from_the_last() -> None:
    ctx = digits(0, 0, 2, 2)
    reply, state = ONE.client(ctx, Continue(), ONE.init_client(ctx.task))
    later = dataclasses.replace(ctx, round=2, rng=Rng(99))
    stored = tree.load(tree.dump(state), LastSet)
    still, _ = dataclasses.replace(ONE, networks=0).client(later, Continue(), stored)
    assert torch.equal(still.synthetic.images, reply.synthetic.images)


def test_matching_brings_noise_nearer_to_the_records() -> None:
    ctx = digits(0, 0, 0, 2, 2, 1, 1)
    method = dataclasses.replace(ONE, initial="noise", pixel_learning_rate=0.5)
    first, _ = method.client(ctx, Continue(), LastSet())
    # The distance of one more step on a new network, after some steps and after none.
    moved = dataclasses.replace(method, networks=10).client(ctx, Continue(), LastSet())[1]
    other = dataclasses.replace(ctx, rng=Rng(50))
    start = dataclasses.replace(method, networks=0).client(ctx, Continue(), LastSet())[1]
    after, before = (method.client(other, Continue(), s)[0].loss for s in (moved, start))
    assert after < before
    assert first.loss > 0


def test_a_class_with_a_single_record_works() -> None:
    ctx = digits(0, 2, 2)
    with pytest.warns(UserWarning, match="fewer records than images_per_class"):
        reply, _ = ONE.client(ctx, Continue(), LastSet())
    assert reply.synthetic.labels.tolist() == [0, 0, 2, 2]
    assert torch.isfinite(reply.synthetic.images).all()


def test_gm_is_one_client_that_holds_everything(tmp_path: Path) -> None:
    pooled = toy_run(GM(**dataclasses.asdict(ONE)), tmp_path / "gm", rounds=1)
    assert pooled.built.partition.clients == 1
    assert pooled.history[0].up_bytes == pooled.history[0].down_bytes == 0
    stored = load_set(tmp_path / "gm" / "synthetic" / "round-0001.safetensors")
    assert len(stored.images) == 2 * 10
    setup = pooled.built
    ctx = dataclasses.replace(
        digits(0),
        task=setup.task,
        client=0,
        rng=setup.rng.at("round", 1, "client", 0),
        data=setup.runner.records.of(0, setup.task),
    )
    alone, _ = ONE.client(ctx, Continue(), LastSet())
    assert bits(alone.synthetic) == bits(pooled.state.sets["0"])


def answer(client: int, value: float) -> Reply[Distilled]:
    images = torch.full((2, 1, 8, 8), value)
    return Reply(client, Distilled(SyntheticSet(images, torch.tensor([client, client])), 0, 1.0))


def test_the_server_trains_a_new_network_on_every_clients_newest_set() -> None:
    task = toy_experiment(ONE).task
    state = ONE.init(ServerContext(task, 0, Rng(0)))
    after = ONE.server(ServerContext(task, 1, Rng(1)), state, [answer(2, 1.0), answer(7, 2.0)])
    ctx = ServerContext(task, 2, Rng(2))
    after = ONE.server(ctx, tree.load(tree.dump(after), Condensed), [answer(2, 3.0)])
    sets = ONE.synthetic(after, [])
    assert {client: float(s.images.mean()) for client, s in sets.items()} == {2: 3.0, 7: 2.0}
    expected = fit(
        task,
        task.model.init(ctx.rng.at("network").torch()),
        torch.cat([sets[2].images, sets[7].images]),
        torch.tensor([2, 2, 7, 7]),
        ctx.rng.at("fit"),
        Training(learning_rate=ONE.server_learning_rate, batch_size=256, epochs=3, momentum=0.9),
    )
    assert torch.allclose(as_vector(after.params), as_vector(expected))


def test_own_sets_reports_the_mean_accuracy_of_each_clients_set_alone(tmp_path: Path) -> None:
    union = toy_run(ONE, tmp_path / "union", rounds=1)
    method = dataclasses.replace(ONE, own_sets=True)
    both = toy_run(method, tmp_path / "both", rounds=1)
    assert both.history[0].accuracy == union.history[0].accuracy
    assert "accuracy_own_sets" not in union.history[0].details
    built, rng = both.built, both.built.rng.at("round", 1, "server")
    shares = []
    for client, synthetic in both.state.sets.items():
        params = fit(
            built.task,
            built.task.model.init(rng.at("alone", client, "network").torch()),
            synthetic.images,
            synthetic.labels,
            rng.at("alone", client, "fit"),
            Training(learning_rate=0.02, batch_size=256, epochs=3, momentum=0.9),
        )
        shares.append(score(built.task, params, built.test).accuracy)
    expected = sum(shares) / len(shares)
    assert both.history[0].details["accuracy_own_sets"] == pytest.approx(expected)
