"""FedDualMatch: its stages, its radius, its gradient matching, and its switches."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedstill.methods.feddualmatch import DualMatched, FedDualMatch
from fedstill.methods.shared.messages import LastSet
from fedstill.methods.shared.surrogate import Distilled, Pool, pooled
from fedstill.records import SyntheticSet
from fedstill.rng import Rng
from fedstill.steps.arithmetic import norm
from fedstill.steps.fit import fit
from fedstill.steps.gradient_matching import grad_distance
from fedstill.steps.training import Training
from fedstill.testing import bits, toy_experiment, toy_run
from fedstill.types import ClientContext, Params, Reply, ServerContext

SMALL = FedDualMatch(
    images_per_class=2,
    iterations=6,
    gradient_rounds=2,
    gradient_steps=2,
    server_iterations=3,
    server_learning_rate=0.05,
    server_batch=256,
    server_schedule="constant",
    server_augment="none",
    server_balanced=False,
)
SETUP = toy_experiment(SMALL)
SERVER = ServerContext(SETUP.task, 1, Rng(0))


def replies() -> list[Reply[Distilled]]:
    generator = Rng(2).torch()
    return [
        Reply(
            client,
            Distilled(
                SyntheticSet(torch.randn(4, 1, 8, 8, generator=generator), torch.tensor(labels)),
                0,
                1.0,
            ),
        )
        for client, labels in enumerate([[0, 0, 1, 1], [1, 1, 5, 5]])
    ]


def mean_gradient(params: Params, images: Tensor, labels: Tensor) -> Params:
    leaves = {k: v.clone().requires_grad_(True) for k, v in params.items()}
    loss = SETUP.task.loss(SETUP.task.model.apply(leaves, images), labels).mean()
    found = torch.autograd.grad(
        loss, list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    return dict(zip(params, found, strict=True))


def test_stages_go_backwards_from_the_logits_in_equal_parts() -> None:
    layers = [matching.layers for matching in dataclasses.replace(SMALL, iterations=8).plan(4)]
    assert layers == [1, 1, 2, 2, 3, 3, 4, 4]
    assert [m.layers for m in dataclasses.replace(SMALL, iterations=5).plan(3)] == [1, 1, 2, 2, 3]
    flat = dataclasses.replace(SMALL, layer_wise=False).plan(4)
    assert {(m.layers, m.squared) for m in flat} == {(2, True)}
    printed = dataclasses.replace(SMALL, squared=False).plan(4)
    assert {m.squared for m in printed} == {False}
    assert dataclasses.replace(SMALL, iterations=0).plan(4) == []


def test_the_radius_is_the_largest_difference_of_a_step() -> None:
    state = SMALL.init(SERVER)
    assert state.radius == 5.0
    answers = replies()
    sets = {r.client: r.message.synthetic for r in answers}
    images = torch.cat([s.images for s in sets.values()])
    labels = torch.cat([s.labels for s in sets.values()])
    common = mean_gradient(state.params, images, labels)
    one_step = max(
        float(norm({k: 0.05 * (g - common[k]) for k, g in gradient.items()}))
        for gradient in (mean_gradient(state.params, s.images, s.labels) for s in sets.values())
    )
    expected = 10 * one_step  # 0.5 by default, the paper's rate times its steps
    assert SMALL.server(SERVER, state, answers).radius == pytest.approx(expected, rel=1e-4)
    longer = dataclasses.replace(SMALL, radius_step=2.0)
    assert longer.server(SERVER, state, answers).radius == pytest.approx(40 * one_step, rel=1e-4)
    fixed = dataclasses.replace(SMALL, adaptive_radius=False)
    assert fixed.server(SERVER, state, answers).radius == 5.0
    noisy = dataclasses.replace(SMALL, radius_noise=0.3).server(SERVER, state, answers).radius
    drawn = float(torch.randn((), generator=SERVER.rng.at("radius").torch()))
    assert noisy == pytest.approx(max(0.0, expected + 0.3 * drawn), rel=1e-4)


def test_one_gradient_matching_step_is_the_double_gradient() -> None:
    method = dataclasses.replace(SMALL, gradient_rounds=1, gradient_steps=1)
    state = method.init(SERVER)
    sets = {r.client: r.message.synthetic for r in replies()}
    images = torch.cat([s.images for s in sets.values()])
    labels = torch.cat([s.labels for s in sets.values()])
    aligned = method.align(SERVER, state.params, 0.0, sets, pooled(replies()))
    target = list(mean_gradient(state.params, images, labels).values())
    expected = []
    for synthetic in sets.values():
        x = synthetic.images.clone().requires_grad_(True)
        leaves = {k: v.clone().requires_grad_(True) for k, v in state.params.items()}
        loss = SETUP.task.loss(SETUP.task.model.apply(leaves, x), synthetic.labels).mean()
        gradient = torch.autograd.grad(
            loss,
            list(leaves.values()),
            create_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        step = torch.autograd.grad(grad_distance(target, gradient), x)[0]
        expected.append(synthetic.images - 0.1 * step)
    assert torch.allclose(aligned.images, torch.cat(expected), atol=1e-5)
    assert torch.equal(aligned.labels, labels)


def test_gradient_matching_brings_the_gradients_nearer() -> None:
    state = SMALL.init(SERVER)
    sets = {r.client: r.message.synthetic for r in replies()}
    images = torch.cat([s.images for s in sets.values()])
    labels = torch.cat([s.labels for s in sets.values()])
    method = dataclasses.replace(SMALL, gradient_steps=10)
    aligned = method.align(SERVER, state.params, 0.0, sets, pooled(replies()))
    target = list(mean_gradient(state.params, images, labels).values())

    def distance(x: Tensor) -> float:
        return float(
            grad_distance(target, list(mean_gradient(state.params, x, labels[:4]).values()))
        )

    assert distance(aligned.images[:4]) < distance(images[:4])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layer_wise": False},
        {"gradient_matching": False},
        {"adaptive_radius": False, "squared": False},
        {"warm_start": True},
        {"memory": 1},
        {"server_augment": "dsa"},
        {"radius": 0.0, "adaptive_radius": False, "initial": "real", "images_per_class": 1},
    ],
    ids=str,
)
def test_every_switch_runs(changes: dict[str, Any], tmp_path: Path) -> None:
    method = dataclasses.replace(SMALL, **changes)
    federation = toy_run(method, tmp_path / "run", rounds=2)
    assert set(federation.history[-1].details) == {"radius", "matching_loss"}
    assert isinstance(federation.state, DualMatched)
    if changes:
        assert bits(federation.state) != bits(toy_run(SMALL, tmp_path / "all", rounds=2).state)


CLIENT = ClientContext(SETUP.task, 1, 0, Rng(0), data=SETUP.runner.records.of(0, SETUP.task))
DOWN = SMALL.broadcast(SERVER, SMALL.init(SERVER))


def test_the_client_starts_from_noise_and_comes_nearer() -> None:
    method = dataclasses.replace(SMALL, layer_wise=False, pixel_learning_rate=0.5)
    first = dataclasses.replace(method, iterations=1).client(CLIENT, DOWN, None)[0].loss
    last = dataclasses.replace(method, iterations=60).client(CLIENT, DOWN, None)[0].loss
    assert last < first


def test_a_warm_start_begins_with_the_images_of_the_last_round() -> None:
    method = dataclasses.replace(SMALL, warm_start=True)
    still = dataclasses.replace(method, iterations=0)
    made, kept = method.client(CLIENT, DOWN, method.init_client(SETUP.task))
    assert isinstance(kept, LastSet)
    assert kept.images is not None
    assert torch.equal(kept.images.flatten(0, 1), made.synthetic.images)
    again, _ = still.client(CLIENT, DOWN, kept)
    assert torch.equal(again.synthetic.images, made.synthetic.images)
    # Without it, and in the first round, they are noise.
    cold, none = SMALL.client(CLIENT, DOWN, SMALL.init_client(SETUP.task))
    assert none is None
    assert torch.equal(cold.synthetic.images, made.synthetic.images)


def test_the_memory_holds_the_sets_of_the_last_rounds_only() -> None:
    """The fit is that on this round's sets, the copies, and the sets of earlier rounds."""
    method = dataclasses.replace(SMALL, memory=1, gradient_matching=False)
    pool = pooled(replies())
    old = Pool(-pool.images, pool.labels.flip(0), pool.weights)
    state = dataclasses.replace(method.init(SERVER), memory=(old,))
    after = method.server(SERVER, state, replies())
    assert [torch.equal(p.images, pool.images) for p in after.memory] == [True]
    expected = fit(
        SETUP.task,
        state.params,
        torch.cat([old.images, pool.images]),
        torch.cat([old.labels, pool.labels]),
        SERVER.rng.at("fit"),
        Training(0.05, 0.9, 256),
        iterations=3,
    )
    assert bits(after.params) == bits(expected)
    forgetful = dataclasses.replace(method, memory=0).server(SERVER, method.init(SERVER), replies())
    assert forgetful.memory == ()


def test_the_server_augments_what_it_trains_on_and_mirrors_only_if_it_may() -> None:
    for flip in (False, True):
        method = dataclasses.replace(
            SMALL, server_augment="dsa", flip=flip, gradient_matching=False, server_iterations=20
        )
        state, pool = method.init(SERVER), pooled(replies())
        training = Training(0.05, 0.9, 256, augment="dsa", flip=flip)
        expected = fit(
            SETUP.task,
            state.params,
            pool.images,
            pool.labels,
            SERVER.rng.at("fit"),
            training,
            iterations=20,
        )
        assert bits(method.server(SERVER, state, replies()).params) == bits(expected)
