"""Fed-GLOSS: a step of each side by the obvious loop, the radius, the limits, and bad input."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedstill import wire
from fedstill.errors import RunError, WireError
from fedstill.methods.fedgloss import FedGloss
from fedstill.methods.shared.messages import LastSet, Region
from fedstill.methods.shared.trusted_descent import Approximation, Global
from fedstill.records import SyntheticSet
from fedstill.rng import Rng
from fedstill.steps.arithmetic import norm, subtract
from fedstill.steps.augment import draw_augmentation
from fedstill.steps.gradient_matching import FED_GLOSS, grad_distance
from fedstill.steps.scores import Scores, score
from fedstill.testing import as_vector, toy_experiment, toy_run
from fedstill.types import ClientContext, Params, Reply, ServerContext
from fedstill.wire import tree
from tests.methods.test_feddm import context, digits

ONE = FedGloss(
    images_per_class=2,
    trajectory_steps=1,
    pixel_steps=1,
    pixel_learning_rate=3.0,
    augment="none",
    radius_epochs=2,
)
STILL = dataclasses.replace(ONE, pixel_steps=0)
FIXED = dataclasses.replace(ONE, radius_choice="fixed", fixed_iterations=1)
SERVER = ServerContext(toy_experiment(ONE, rounds=4).task, 1, Rng(0))


def region(ctx: ClientContext, radius: float = 10.0) -> Region:
    return Region(ctx.task.model.init(Rng(1).torch()), radius)


def mean_gradient(
    ctx: Any, params: Params, x: Tensor, y: Tensor, *, twice: bool = False
) -> list[Tensor]:
    """Gradient of the mean loss, the whole batch at once."""
    leaves = {k: v.clone().requires_grad_(True) for k, v in params.items()}
    loss = ctx.task.loss(ctx.task.model.apply(leaves, x), y).mean()
    found = torch.autograd.grad(
        loss, list(leaves.values()), create_graph=twice, allow_unused=True, materialize_grads=True
    )
    return list(found)


def stepped(ctx: Any, params: Params, synthetic: SyntheticSet, eta: float) -> Params:
    gradient = mean_gradient(ctx, params, synthetic.images, synthetic.labels)
    return {k: v - eta * g for (k, v), g in zip(params.items(), gradient, strict=True)}


def replies(*radii_and_records: tuple[float, int]) -> list[Reply[Approximation]]:
    generator = Rng(2).torch()
    found = []
    for client, (radius, records) in enumerate(radii_and_records):
        size = 2 * client + 2
        images = torch.randn(size, 1, 8, 8, generator=generator)
        synthetic = SyntheticSet(images, torch.arange(size) % 10)
        found.append(Reply(client, Approximation(synthetic, records, radius, 1.0)))
    return found


@pytest.mark.parametrize("augment", ["none", "dsa"])
def test_one_pixel_step_is_the_obvious_loop(augment: Any) -> None:
    ctx = digits(0, 0, 0, 2, 2, 2, 2)
    down = region(ctx)
    method = dataclasses.replace(ONE, augment=augment)
    before = dataclasses.replace(method, pixel_steps=0).client(ctx, down, None)[0].synthetic
    after = method.client(ctx, down, None)[0]
    # One draw of the augmentation for both sides; all records are one batch.
    change = draw_augmentation(augment, ctx.rng.at("augment").torch(), flip=False)
    x, y = ctx.records.all()
    target = mean_gradient(ctx, down.params, change(x), y)
    pixels = before.images.clone().requires_grad_(True)
    gradient = mean_gradient(ctx, down.params, change(pixels), before.labels, twice=True)
    distance = grad_distance(target, gradient, FED_GLOSS)
    expected = pixels - 3.0 * torch.autograd.grad(distance, pixels)[0]
    assert torch.allclose(after.synthetic.images, expected, atol=1e-5)
    assert after.loss == pytest.approx(float(distance.detach()), rel=1e-4)
    assert after.synthetic.labels.tolist() == [0, 0, 2, 2]
    assert after.records == 7


def test_a_trajectory_step_trains_on_the_images_and_matches_again() -> None:
    ctx = digits(0, 0, 0, 2, 2)
    down = region(ctx)
    method = dataclasses.replace(ONE, trajectory_steps=2, local_steps=2)
    first = ONE.client(ctx, down, None)[0].synthetic
    weights = down.params
    for _ in range(2):
        weights = stepped(ctx, weights, first, method.learning_rate(ctx.task, 1))
    x, y = ctx.records.all()
    target = mean_gradient(ctx, weights, x, y)
    pixels = first.images.clone().requires_grad_(True)
    gradient = mean_gradient(ctx, weights, pixels, first.labels, twice=True)
    pixel_gradient = torch.autograd.grad(grad_distance(target, gradient, FED_GLOSS), pixels)[0]
    start = STILL.client(ctx, down, None)[0].synthetic.images
    velocity = 0.5 * (start - first.images) / 3.0 + pixel_gradient  # momentum of the step before
    second = method.client(ctx, down, None)[0].synthetic
    assert torch.allclose(second.images, pixels - 3.0 * velocity, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"trajectory_steps": 5, "pixel_steps": 3}, 15),  # w stays at w^m: all five
        ({"trajectory_steps": 5, "local_steps": 1}, 5),
        ({"trajectory_steps": 5, "local_steps": 1, "server_learning_rate": 1e3}, 1),  # leaves r
        ({"trajectories": 3, "trajectory_steps": 2, "real_batches": 4}, 24),
        ({"trajectories": 0}, 0),
    ],
)
def test_how_many_pixel_steps_are_made(changes: dict[str, Any], steps: int) -> None:
    reported: list[tuple[int, int]] = []
    ctx = dataclasses.replace(digits(0, 0, 2), progress=lambda *at: reported.append(at))
    dataclasses.replace(FIXED, **changes).client(ctx, region(ctx), None)
    assert len(reported) == steps
    assert all(done <= expected for done, expected in reported)


def test_without_pixel_steps_the_images_stay_as_they_were() -> None:
    ctx = digits(0, 0, 0, 2, 2)
    still = STILL.client(ctx, region(ctx), None)[0]
    x, y = ctx.records.all()
    for image, label in zip(still.synthetic.images, still.synthetic.labels, strict=True):
        assert any(torch.equal(image, record) for record in x[y == label])
    assert still.loss == 0.0
    noise = dataclasses.replace(STILL, initial="noise").client(ctx, region(ctx), None)[0]
    assert not any(torch.equal(noise.synthetic.images[0], record) for record in x)


def test_warm_start_continues_from_the_last_set() -> None:
    ctx = digits(0, 0, 2, 2)
    method = dataclasses.replace(ONE, warm_start=True)
    assert ONE.init_client(ctx.task) is None
    reply, state = method.client(ctx, region(ctx), method.init_client(ctx.task))
    stored = tree.load(tree.dump(state), LastSet)
    later = dataclasses.replace(ctx, round=2, rng=Rng(99))
    still, _ = dataclasses.replace(method, pixel_steps=0).client(later, region(ctx), stored)
    assert torch.equal(still.synthetic.images, reply.synthetic.images)


@pytest.mark.parametrize("criterion", ["cosine", "cosine+mse", "mse", "calibrated"])
def test_matching_brings_noise_nearer_to_the_records(criterion: Any) -> None:
    ctx = digits(0, 0, 0, 2, 2, 1)
    method = dataclasses.replace(FIXED, initial="noise", criterion=criterion)
    method = dataclasses.replace(method, images_per_class=3, pixel_momentum=0.0)
    first, _ = method.client(ctx, region(ctx), None)
    last, _ = dataclasses.replace(method, pixel_steps=30).client(ctx, region(ctx), None)
    assert last.loss < 0.9 * first.loss
    assert (first.norms is not None) == (criterion == "calibrated")


def test_the_radius_is_where_the_real_loss_is_smallest() -> None:
    ctx = digits(0, 0, 0, 2, 2, 1, 1)
    down = region(ctx)
    method = dataclasses.replace(ONE, radius_epochs=12, server_learning_rate=0.5)
    reply, _ = method.client(ctx, down, None)
    weights, seen = down.params, []
    for _ in range(12):
        weights = stepped(ctx, weights, reply.synthetic, 0.5)
        loss = score(ctx.task, weights, ctx.records).loss
        seen.append((loss, float(norm(subtract(weights, down.params)))))
    assert reply.radius == pytest.approx(min(seen)[1], rel=1e-3)
    assert 0 < min(seen)[1] < max(distance for _, distance in seen)  # neither end: it turned
    near, _ = method.client(ctx, Region(down.params, 0.01), None)
    assert near.radius == 0.01


def test_the_radius_looks_at_some_of_the_records_only(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def watched(task: Any, params: Params, records: Any) -> Scores:
        looked.append(len(records))
        return score(task, params, records)

    monkeypatch.setattr("fedstill.methods.fedgloss.score", watched)
    ctx = digits(0, 0, 0, 2, 2, 1, 1)
    dataclasses.replace(STILL, radius_records=4).client(ctx, region(ctx), None)
    assert looked == [4, 4]
    looked.clear()
    dataclasses.replace(STILL, radius_records="all").client(ctx, region(ctx), None)
    assert looked == [7, 7]
    looked.clear()
    reply, _ = FIXED.client(ctx, region(ctx), None)
    assert looked == []  # fixed: nothing is measured
    assert reply.radius == 10.0


@pytest.mark.parametrize("choice", ["min", "median", "max"])
def test_the_server_goes_as_far_as_the_chosen_radius(choice: Any) -> None:
    method = dataclasses.replace(ONE, radius_choice=choice, server_learning_rate=0.05)
    answers = replies((0.3, 4), (0.7, 4), (0.2, 4), (0.5, 4))
    state = method.init(SERVER)
    after = method.server(SERVER, state, answers)
    wanted = {"min": 0.2, "median": 0.4, "max": 0.7}[choice]
    assert after.radius == pytest.approx(wanted)
    moved = float(norm(subtract(after.params, state.params)))
    assert wanted <= moved < 1.5 * wanted
    assert after.moved == pytest.approx(moved)
    details = method.report(after, answers)
    assert (details["radius_min"], details["radius_max"]) == (0.2, 0.7)
    assert details["radius"] == after.radius
    assert details["server_iterations"] == after.iterations > 1


def test_the_server_says_that_it_does_not_reach_the_radius() -> None:
    method = dataclasses.replace(ONE, most_iterations=3, server_learning_rate=1e-6)
    answers = replies((5.0, 1))
    with pytest.warns(UserWarning, match=r"radius not reached.*raise method\.server_learning_rate"):
        after = method.server(SERVER, method.init(SERVER), answers)
    assert after.iterations == 3
    assert method.report(after, answers)["radius_reached"] == 0.0
    constant = dataclasses.replace(method, radius_choice="constant", server_learning_rate=100.0)
    reached = constant.server(SERVER, constant.init(SERVER), answers)
    assert constant.report(reached, answers)["radius_reached"] == 1.0
    fixed = dataclasses.replace(method, radius_choice="fixed", fixed_iterations=1)
    ignored = fixed.server(SERVER, fixed.init(SERVER), answers)  # no radius: nothing to say
    assert "radius_reached" not in fixed.report(ignored, answers)


def test_server_steps_are_augmented_with_one_draw_each() -> None:
    answers = replies((10.0, 30), (10.0, 10))
    method = dataclasses.replace(FIXED, fixed_iterations=3, server_augment="dsa", flip=True)
    state = method.init(SERVER)
    after = method.server(SERVER, state, answers)
    changes = SERVER.rng.at("server augment").torch()
    expected = state.params
    for _ in range(3):
        change = draw_augmentation("dsa", changes, flip=True)
        steps = []
        for reply in answers:
            images, labels = reply.message.synthetic.images, reply.message.synthetic.labels
            steps.append(mean_gradient(SERVER, expected, change(images), labels))
        expected = {
            name: weight - method.server_learning_rate * (0.75 * a + 0.25 * b)
            for (name, weight), a, b in zip(expected.items(), *steps, strict=True)
        }
    assert torch.allclose(as_vector(after.params), as_vector(expected), atol=1e-5)
    plain = dataclasses.replace(method, server_augment="none").server(SERVER, state, answers)
    assert not torch.allclose(as_vector(after.params), as_vector(plain.params), atol=1e-3)


def test_the_radius_search_and_the_inner_steps_are_augmented_too() -> None:
    ctx = digits(0, 0, 0, 2, 2, 1, 1)
    down = region(ctx)
    method = dataclasses.replace(STILL, radius_epochs=4, server_augment="dsa")
    reply, _ = method.client(ctx, down, None)
    changes = ctx.rng.at("radius augment").torch()
    weights, seen = down.params, []
    for _ in range(4):
        change = draw_augmentation("dsa", changes, flip=False)
        changed = SyntheticSet(change(reply.synthetic.images), reply.synthetic.labels)
        weights = stepped(ctx, weights, changed, method.learning_rate(ctx.task, 1))
        loss = score(ctx.task, weights, ctx.records).loss
        seen.append((loss, float(norm(subtract(weights, down.params)))))
    assert reply.radius == pytest.approx(min(seen)[1], rel=1e-3)
    inner = dataclasses.replace(FIXED, trajectory_steps=2, local_steps=1, server_learning_rate=1.0)
    plain, _ = inner.client(ctx, down, None)
    other, _ = dataclasses.replace(inner, server_augment="dsa").client(ctx, down, None)
    assert not torch.allclose(plain.synthetic.images, other.synthetic.images, atol=1e-3)


def test_a_calibrated_step_is_augmented_too() -> None:
    ctx = digits(0, 0, 0, 2, 2)
    method = dataclasses.replace(FIXED, criterion="calibrated", server_augment="dsa")
    down = region(ctx)
    reply, _ = method.client(ctx, down, None)
    server = ServerContext(ctx.task, 1, Rng(0))
    after = method.server(server, Global(down.params), [Reply(0, reply)])
    change = draw_augmentation("dsa", server.rng.at("server augment").torch(), flip=False)
    synthetic = reply.synthetic
    gradient = mean_gradient(ctx, down.params, change(synthetic.images), synthetic.labels)
    assert reply.norms is not None
    for name, part, real in zip(down.params, gradient, reply.norms.tolist(), strict=True):
        step = part * real / max(float(part.norm()), 1e-20)
        expected = down.params[name] - method.server_learning_rate * step
        assert torch.allclose(after.params[name], expected, atol=1e-5)


def test_a_server_step_is_the_weighted_sum_of_the_clients_gradients() -> None:
    answers = replies((10.0, 30), (10.0, 10))
    state = FIXED.init(SERVER)
    for weighting, shares in (("records", (0.75, 0.25)), ("uniform", (0.5, 0.5))):
        method = dataclasses.replace(FIXED, weighting=weighting)  # type: ignore[arg-type]
        after = method.server(SERVER, state, answers)
        expected = state.params
        for share, reply in zip(shares, answers, strict=True):
            synthetic = reply.message.synthetic
            step = subtract(stepped(SERVER, state.params, synthetic, 1.0), state.params)
            expected = {
                k: v + method.server_learning_rate * share * step[k] for k, v in expected.items()
            }
        assert torch.allclose(as_vector(after.params), as_vector(expected), atol=1e-6)
        assert after.iterations == 1
    assert "radius" not in FIXED.report(after, answers)


def test_trust_multiplies_a_clients_share() -> None:
    first, second = replies((10.0, 30), (10.0, 10))
    answers = [first, dataclasses.replace(second, trust=0.5)]
    assert FIXED.shares(answers) == pytest.approx([30 / 35, 5 / 35])


def test_one_client_with_its_records_as_images_is_plain_descent() -> None:
    ctx = digits(*range(3))
    method = dataclasses.replace(FIXED, images_per_class=1, pixel_steps=0, fixed_iterations=7)
    server = ServerContext(ctx.task, 1, Rng(0))
    state = method.init(server)
    reply, _ = method.client(ctx, method.broadcast(server, state), None)
    after = method.server(server, state, [Reply(0, reply)])
    x, y = ctx.records.all()
    weights = state.params
    for _ in range(7):
        weights = stepped(ctx, weights, SyntheticSet(x, y), method.server_learning_rate)
    assert torch.allclose(as_vector(after.params), as_vector(weights), atol=1e-6)


def test_calibrated_steps_have_the_length_of_the_real_gradient() -> None:
    ctx = digits(0, 0, 0, 2, 2)
    method = dataclasses.replace(FIXED, criterion="calibrated", server_learning_rate=0.5)
    down = region(ctx)
    reply, _ = method.client(ctx, down, None)
    x, y = ctx.records.all()
    lengths = [float(g.norm()) for g in mean_gradient(ctx, down.params, x, y)]
    assert reply.norms is not None
    assert reply.norms.tolist() == pytest.approx(lengths, rel=1e-4, abs=1e-9)
    server = ServerContext(ctx.task, 1, Rng(0))
    after = method.server(server, Global(down.params), [Reply(0, reply)])
    for name, length in zip(down.params, lengths, strict=True):
        moved = float((after.params[name] - down.params[name]).norm())
        assert moved == pytest.approx(0.5 * length, rel=1e-3, abs=1e-6)
    with pytest.raises(WireError, match="norms"):
        FIXED.upload(ctx.task).check(reply)
    schema = method.upload(ctx.task)
    assert wire.decode(wire.encode(reply, schema), schema).norms is not None


def test_the_learning_rate_falls_like_a_cosine() -> None:
    rates = [ONE.learning_rate(SERVER.task, number) for number in (1, 2, 3, 4)]
    half = ONE.server_learning_rate / 2
    expected = [half * (1 + math.cos(math.pi * part)) for part in (0, 0.25, 0.5, 0.75)]
    assert rates == pytest.approx(expected)
    beginning = dataclasses.replace(ONE, decay_rounds=8)  # of a run with twice as many rounds
    assert beginning.learning_rate(SERVER.task, 3) == pytest.approx(rates[1])
    assert 0 < beginning.learning_rate(SERVER.task, 99) < 0.05 * ONE.server_learning_rate
    constant = dataclasses.replace(ONE, decay="none")
    assert constant.learning_rate(SERVER.task, 4) == ONE.server_learning_rate


def test_a_class_with_one_record_and_a_client_with_one() -> None:
    for labels in ((0, 2, 2), (1,)):
        ctx = digits(*labels)
        with pytest.warns(UserWarning, match="fewer records than images_per_class"):
            reply, _ = ONE.client(ctx, region(ctx), None)
        assert len(reply.synthetic) == 2 * len(set(labels))
        assert torch.isfinite(reply.synthetic.images).all()
        assert math.isfinite(reply.loss)
        assert reply.radius > 0


def test_a_real_batch_is_a_part_of_the_records() -> None:
    ctx = digits(*[0] * 9, *[1] * 2, *[2] * 5)
    some = dataclasses.replace(ONE, real_batch=4).client(ctx, region(ctx), None)[0]
    every = ONE.client(ctx, region(ctx), None)[0]
    assert not torch.equal(some.synthetic.images, every.synthetic.images)


def test_uniform_weights_keep_the_number_of_records_at_home() -> None:
    ctx = digits(0, 0, 2, 2)
    method = dataclasses.replace(ONE, weighting="uniform")
    reply, _ = method.client(ctx, region(ctx), None)
    assert reply.records == 0
    assert method.upload(ctx.task).numbers["records"] == (0, 0)


def test_nan_in_the_records_is_named() -> None:
    inputs = torch.rand(4, 1, 8, 8)
    inputs[1, 0, 0, 0] = float("inf")
    ctx = context(inputs, torch.tensor([0, 0, 1, 1]))
    with pytest.raises(RunError, match="client 7: record 1 holds NaN"):
        ONE.client(ctx, region(ctx), None)


def test_a_run_reports_its_radii_and_keeps_its_sets(tmp_path: Path) -> None:
    federation = toy_run(ONE, tmp_path / "run", rounds=1)
    details = federation.history[0].details
    assert details["radius"] == details["radius_min"] <= details["radius_median"]
    assert details["matching_loss"] > 0
    assert (tmp_path / "run" / "synthetic" / "round-0001.safetensors").exists()
