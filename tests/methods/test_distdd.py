"""DistDD: a round by hand and by the obvious loop, its limits, its product, and bad input."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import fedstill
from fedstill import wire
from fedstill.draw.sets import show
from fedstill.errors import WireError
from fedstill.methods.distdd import ClassGradients, DistDD, Distillation
from fedstill.methods.shared.messages import Weights
from fedstill.models import ConvNet, Model
from fedstill.records import SERVER, Records, Split
from fedstill.rng import Rng
from fedstill.runs.sets import load_set
from fedstill.scaling import Scaling
from fedstill.steps.class_gradients import match_class
from fedstill.testing import as_vector, toy_run
from fedstill.types import ClientContext, Params, Reply, ServerContext, Task
from tests.methods.small import SMALL

FAST = DistDD(**SMALL["distdd"])
MODEL = ConvNet((1, 8, 8), 3, width=4)
TASK = Task(MODEL, (1, 8, 8), 3, 2, 9, Scaling((0.5,), (0.25,)))
SERVER_CONTEXT = ServerContext(TASK, 1, Rng(5))


def client(*labels: int, seed: int = 0) -> ClientContext:
    pixels = torch.randint(
        0, 256, (len(labels), 1, 8, 8), generator=Rng(seed).torch(), dtype=torch.uint8
    )
    split = Split(pixels, torch.tensor(labels))
    records = Records(split, torch.arange(len(labels)), TASK.scaling)
    return ClientContext(TASK, 1, seed, Rng(seed), data=records)


def gradient(params: Params, x: Tensor, y: Tensor, *, graph: bool = False) -> list[Tensor]:
    weights = {k: v.detach().requires_grad_(True) for k, v in params.items()}
    loss = cross_entropy(MODEL.apply(weights, x), y)
    return list(
        torch.autograd.grad(
            loss, list(weights.values()), create_graph=graph, materialize_grads=True,
            allow_unused=True,
        )
    )  # fmt: skip


def obvious_distance(real: list[Tensor], synthetic: list[Tensor]) -> Tensor:
    """Row by row of every matrix: 1 - cosine."""
    total = torch.zeros(())
    for a, b in zip(real, synthetic, strict=True):
        if a.dim() > 1:
            for row, other in zip(a.flatten(1), b.flatten(1), strict=True):
                total = total + 1 - (row @ other) / (row.norm() * other.norm())
    return total


def test_a_round_is_the_obvious_loop() -> None:
    method = dataclasses.replace(
        FAST, steps_s=2, pixel_learning_rate=0.3, pixel_momentum=0.5, steps_theta=1
    )
    state = method.init(SERVER_CONTEXT)
    contexts = [client(0, 0, 2, 2, 2, seed=1), client(0, 0, seed=2)]
    down = method.broadcast(SERVER_CONTEXT, state)
    replies = [Reply(k, method.client(c, down, None)[0]) for k, c in enumerate(contexts)]
    after = method.server(SERVER_CONTEXT, state, replies)

    images = state.images.clone()
    for label in (0, 2):
        gradients = []
        for c in contexts:  # line 4, line 5: the mean over those who hold the class
            x, y = c.records.all()
            if (y == label).any():
                gradients.append(gradient(state.params, x[y == label], y[y == label]))
        target = [torch.stack(g).mean(0) for g in zip(*gradients, strict=True)]
        velocity = torch.zeros_like(images[label])
        for _ in range(2):  # line 6
            pixels = images[label].clone().requires_grad_(True)
            labels = torch.full((2,), label)
            distance = obvious_distance(target, gradient(state.params, pixels, labels, graph=True))
            velocity = 0.5 * velocity + torch.autograd.grad(distance, pixels)[0]
            images[label] = images[label] - 0.3 * velocity
    assert torch.allclose(after.images, images, atol=1e-5)
    assert torch.equal(after.images[1], state.images[1])  # nobody holds class 1
    by_weight = gradient(state.params, images.flatten(0, 1), torch.tensor([0, 0, 1, 1, 2, 2]))
    for (name, weight), g in zip(state.params.items(), by_weight, strict=True):  # line 7
        expected = weight - method.theta_learning_rate * g
        assert torch.allclose(after.params[name], expected, atol=1e-6)
    assert after.matched == 2


@dataclasses.dataclass(frozen=True)
class Line(Model):
    """Logits (w x, 0) of one number x: everything can be checked on paper."""

    def init(self, generator: torch.Generator) -> Params:
        return {"w": torch.zeros(1, 1)}

    def features(self, params: Params, x: Tensor) -> tuple[Tensor, ...]:
        z = x @ params["w"]
        return (x, torch.cat([z, torch.zeros_like(z)], 1))


def test_a_gradient_by_hand() -> None:
    """At w = 0 both classes have probability 1/2: d/dw of the loss is -x/2 and x/2."""
    task = Task(Line(), (1,), 2, 1, 5, Scaling((0.0,), (1.0,)))
    split = Split(torch.tensor([[3.0], [5.0], [7.0]]), torch.tensor([0, 0, 1]))
    records = Records(split, torch.arange(3), task.scaling)
    ctx = ClientContext(task, 1, 0, Rng(0), data=records)
    up, _ = DistDD().client(ctx, Weights({"w": torch.zeros(1, 1)}), None)
    assert up.classes.tolist() == [0, 1]
    assert up.gradients["w"].flatten().tolist() == [-2.0, 3.5]
    # One row of one number: the cosine is +-1, so only the squared distance moves the pixels.
    how = DistDD(steps_s=1, pixel_learning_rate=0.5, distance="cosine+mse").matching
    wanted = {"w": up.gradients["w"][0]}
    moved, distance = match_class(
        task, {"w": torch.zeros(1, 1)}, torch.tensor([[2.0]]), 0, wanted, how, Rng(0).torch()
    )
    # Weight gradient -s/2 at s = 2: distance (-2 - -1)^2 = 1, pixel gradient -(-s/2 + 2) = -1.
    assert float(distance) == pytest.approx(1.0)
    assert float(moved) == pytest.approx(2.0 + 0.5 * 1.0)


def test_as_printed_by_hand() -> None:
    """Eq. 3 and 27: the sum of two clients' gradients, -2 and -1, and the squared distance."""
    task = Task(Line(), (1,), 2, 2, 5, Scaling((0.0,), (1.0,)))
    replies = [
        Reply(k, ClassGradients(torch.tensor([0]), {"w": torch.tensor([[[g]]])}))
        for k, g in enumerate((-2.0, -1.0))
    ]
    method = DistDD(aggregate="sum", distance="mse", steps_s=2, pixel_learning_rate=0.5)
    target = method.targets(replies)[0]
    assert float(target["w"]) == -3.0
    moved, distance = match_class(
        task, {"w": torch.zeros(1, 1)}, torch.tensor([[2.0]]), 0, target, method.matching,
        Rng(0).torch(),
    )  # fmt: skip
    # (-3 + s/2)^2 at s = 2 is 4, its gradient s/2 - 3 = -2: s = 3, velocity -2.
    # Then the gradient is -1.5 and the velocity 0.5 * -2 - 1.5 = -2.5: s = 4.25.
    assert float(distance) == pytest.approx(4.0)
    assert float(moved) == pytest.approx(4.25)


def test_the_sum_is_the_mean_to_cosines_and_another_target_to_the_squared_distance() -> None:
    state = FAST.init(SERVER_CONTEXT)
    replies = replies_at(state, *(client(0, 0, 1, seed=k) for k in range(4)))

    def images(**settings: Any) -> Tensor:
        method = dataclasses.replace(FAST, pixel_learning_rate=0.1, **settings)
        return method.server(SERVER_CONTEXT, state, replies).images

    assert torch.allclose(images(aggregate="sum"), images(), atol=1e-5)
    squared = images(aggregate="sum", distance="mse") - images(distance="mse")
    assert squared[:2].abs().max() > 1e-3


def test_the_squared_distance_is_over_all_weights() -> None:
    method = dataclasses.replace(FAST, distance="mse", pixel_learning_rate=0.1, steps_s=1)
    state = method.init(SERVER_CONTEXT)
    context = client(1, 1, seed=3)
    after = method.server(SERVER_CONTEXT, state, replies_at(state, context))
    x, y = context.records.all()
    pixels = state.images[1].clone().requires_grad_(True)
    ours = gradient(state.params, pixels, torch.tensor([1, 1]), graph=True)
    real = gradient(state.params, x, y)
    distance = torch.stack([(a - b).square().sum() for a, b in zip(real, ours, strict=True)]).sum()
    expected = state.images[1] - 0.1 * torch.autograd.grad(distance, pixels)[0]
    assert torch.allclose(after.images[1], expected, atol=1e-6)
    assert after.distance == pytest.approx(distance.item(), rel=1e-4)


def test_a_mini_batch_of_the_set_moves_alone() -> None:
    state = FAST.init(SERVER_CONTEXT)
    replies = replies_at(state, client(0, 1, 2))
    single = dataclasses.replace(FAST, steps_s=1, synthetic_batch=1)
    after = single.server(SERVER_CONTEXT, state, replies).images
    moved = (after != state.images).flatten(2).any(2)
    assert moved.sum(1).tolist() == [1, 1, 1]  # one of two images per class
    # The one that moved did so as a set of one image would.
    label, row = 2, int(moved[2].nonzero())
    alone = dataclasses.replace(state, images=state.images[:, row : row + 1])
    of_one = dataclasses.replace(FAST, steps_s=1).server(SERVER_CONTEXT, alone, replies).images
    assert torch.allclose(after[label, row], of_one[label, 0], atol=1e-6)


def test_a_mini_batch_of_all_images_is_the_whole_set() -> None:
    state = FAST.init(SERVER_CONTEXT)
    replies = replies_at(state, client(0, 1, 2))
    whole = FAST.server(SERVER_CONTEXT, state, replies).images
    for batch in (2, 3):
        method = dataclasses.replace(FAST, synthetic_batch=batch)
        assert torch.equal(method.server(SERVER_CONTEXT, state, replies).images, whole)


def test_over_the_steps_every_image_has_its_turn() -> None:
    method = dataclasses.replace(FAST, steps_s=12, synthetic_batch=1)
    state = method.init(SERVER_CONTEXT)
    after = method.server(SERVER_CONTEXT, state, replies_at(state, client(0, 1, 2))).images
    assert (after != state.images).flatten(2).any(2).all()


def replies_at(state: Distillation, *contexts: ClientContext) -> list[Reply[ClassGradients]]:
    down = FAST.broadcast(SERVER_CONTEXT, state)
    return [Reply(k, FAST.client(c, down, None)[0]) for k, c in enumerate(contexts)]


def test_the_median_forgets_a_client_that_the_mean_follows() -> None:
    state = FAST.init(SERVER_CONTEXT)
    replies = replies_at(state, *(client(0, 0, 1, seed=k) for k in range(5)))
    wild = {k: v * -1e4 for k, v in replies[0].message.gradients.items()}
    attacked = [Reply(0, ClassGradients(replies[0].message.classes, wild)), *replies[1:]]
    for rule in ("median", "trimmed-mean", "krum", "multi-krum"):
        method = dataclasses.replace(FAST, aggregate=rule, trim=0.2)
        sound = as_vector(method.targets(replies)[0])
        assert (as_vector(method.targets(attacked)[0]) - sound).norm() < sound.norm()
    sound = as_vector(FAST.targets(replies)[0])
    assert (as_vector(FAST.targets(attacked)[0]) - sound).norm() > 100 * sound.norm()


def test_a_zero_gradient_does_no_harm() -> None:
    state = FAST.init(SERVER_CONTEXT)
    nothing = {k: torch.zeros(1, *v.shape) for k, v in state.params.items()}
    after = FAST.server(
        SERVER_CONTEXT, state, [Reply(0, ClassGradients(torch.tensor([1]), nothing))]
    )
    assert torch.isfinite(after.images).all()
    assert all(torch.isfinite(v).all() for v in after.params.values())
    assert torch.equal(after.images, state.images)  # it points nowhere


def test_classes_with_too_few_holders_for_krum_keep_their_images_and_it_is_said() -> None:
    method = dataclasses.replace(FAST, aggregate="krum", byzantine=0)
    state = method.init(SERVER_CONTEXT)
    contexts = [client(0, 1, seed=1), client(0, 1, seed=2), client(0, seed=3)]
    replies = replies_at(state, *contexts)
    with pytest.warns(UserWarning, match="needs 3 clients per class; .* fewer hold class 1"):
        after = method.server(SERVER_CONTEXT, state, replies)
    assert torch.equal(after.images[1:], state.images[1:])
    assert not torch.equal(after.images[0], state.images[0])
    assert after.matched == 1


def test_theta_is_drawn_anew_and_ends_as_a_network_trained_from_scratch() -> None:
    method = dataclasses.replace(FAST, restart_every=2, steps_theta=0)
    state = method.init(SERVER_CONTEXT)
    replies = replies_at(state, client(0, 1, 2))
    kept = method.server(SERVER_CONTEXT, state, replies)
    assert torch.equal(as_vector(kept.params), as_vector(state.params))
    second = dataclasses.replace(SERVER_CONTEXT, round=2, rng=Rng(7))
    redrawn = method.server(second, state, replies)
    assert torch.equal(as_vector(redrawn.params), as_vector(method.theta(second)))
    last = method.server(dataclasses.replace(second, round=9), state, replies)
    assert not torch.equal(as_vector(last.params), as_vector(redrawn.params))
    assert last.due


def test_messages_that_do_not_fit_together_are_refused() -> None:
    state = FAST.init(SERVER_CONTEXT)
    schema = FAST.upload(TASK)
    up = replies_at(state, client(0, 2))[0].message
    data = wire.encode(up, schema)
    assert wire.decode(data, schema).classes.tolist() == [0, 2]
    for classes in (torch.tensor([2, 0]), torch.tensor([1, 1]), torch.tensor([1])):
        forged = object.__new__(ClassGradients)  # a client may send what it likes
        object.__setattr__(forged, "classes", classes)
        object.__setattr__(forged, "gradients", up.gradients)
        with pytest.raises(WireError, match=r"ascending|not one gradient"):
            wire.decode(wire.encode(forged, schema), schema)


def test_a_run_ends_with_a_set_and_the_accuracy_of_new_networks(tmp_path: Path) -> None:
    method = dataclasses.replace(FAST, fresh_every=2)
    federation = toy_run(method, tmp_path / "run", rounds=3)
    measured = [m.round for m in federation.history if m.accuracy is not None]
    assert measured == [2, 3]
    details = federation.history[-1].details
    assert details["networks"] == 2
    accuracy = federation.history[-1].accuracy
    assert accuracy is not None
    assert details["accuracy_min"] <= accuracy <= details["accuracy_max"]
    assert details["accuracy_std"] >= 0
    assert details["classes_matched"] == 10
    files = sorted(p.name for p in (tmp_path / "run" / "synthetic").iterdir())
    assert files == ["round-0002.safetensors", "round-0003.safetensors"]
    stored = load_set(tmp_path / "run" / "synthetic" / files[-1])
    assert stored.clients.unique().tolist() == [SERVER]
    assert torch.equal(stored.of(SERVER).images, federation.state.images.flatten(0, 1))
    assert stored.labels.tolist() == [label for label in range(10) for _ in range(2)]
    # One sheet per round: the server's set needs no overview of clients.
    assert [p.name for p in show(tmp_path / "run")] == ["round-0002.png", "round-0003.png"]


def test_an_upload_is_classes_times_weights(tmp_path: Path) -> None:
    federation = toy_run(FAST, tmp_path / "run", rounds=1)
    setup = federation.built
    pairs = sum(len(setup.runner.records.of(k, setup.task).labels.unique()) for k in range(3))
    payload = 4 * pairs * setup.task.model.size + 8 * pairs
    assert 0 < federation.history[0].up_bytes - payload < 3 * 3000


def test_the_command_line_reports_the_spread(tmp_path: Path, capsys: Any) -> None:
    from fedstill.cli.run import _print_outcome

    settings = {f"method.{k}": v for k, v in SMALL["distdd"].items()}
    settings |= {"method.real_batch": 4, "model.width": 4, "method.steps_s": 1}
    result = fedstill.run("distdd", rounds=1, workers=1, out=tmp_path / "run", set=settings)
    assert result.summary.details["networks"] == 2
    _print_outcome(result.folder, result.summary)
    assert "(2 networks) after 1 round," in capsys.readouterr().out


def test_the_set_comes_nearer_round_by_round() -> None:
    """With theta and the records held still, the distance of the gradients falls."""
    method = dataclasses.replace(FAST, steps_theta=0, steps_s=4, pixel_learning_rate=0.5)
    state = method.init(SERVER_CONTEXT)
    replies = replies_at(state, client(0, 0, 1, 2), client(1, 2, 2, seed=1))
    distances = []
    for _ in range(5):
        state = method.server(SERVER_CONTEXT, state, replies)
        distances.append(state.distance)
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.7 * distances[0]


def test_new_networks_may_train_with_augmentation() -> None:
    state = dataclasses.replace(FAST.init(SERVER_CONTEXT), due=True)
    test = client(*[0, 1, 2] * 10).records
    plain = FAST.evaluate(SERVER_CONTEXT, state, test)
    augmented = dataclasses.replace(FAST, fresh_augment="dsa")
    assert augmented.training.augment == "dsa"
    assert augmented.evaluate(SERVER_CONTEXT, state, test).loss != plain.loss


@pytest.mark.slow
def test_the_default_run_distils_a_set_that_teaches(tmp_path: Path) -> None:
    result = fedstill.run(
        "distdd", rounds=10, workers=1, out=tmp_path / "run", set={"method.fresh_networks": 2}
    )
    assert result.summary.accuracy is not None
    assert result.summary.accuracy > 0.8
