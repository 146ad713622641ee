"""FedDM: one step by hand, the obvious loop, the limits, and bad input."""

import dataclasses
import warnings
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import fedstill
from fedstill.errors import RequestError, RunError
from fedstill.methods.feddm import FedDM
from fedstill.methods.psg import PSG
from fedstill.methods.shared.messages import LastSet, Weights
from fedstill.methods.shared.surrogate import Distilled, Surrogate
from fedstill.models import MLP, ConvNet
from fedstill.records import Records, Split, SyntheticSet
from fedstill.rng import Rng
from fedstill.runs.sets import load_set
from fedstill.scaling import Kind, Scaling
from fedstill.steps import distil, matching
from fedstill.steps.arithmetic import norm, subtract
from fedstill.testing import as_vector, toy_experiment, toy_run
from fedstill.types import ClientContext, Reply, ServerContext, Task
from fedstill.wire import tree

SMALL = FedDM(images_per_class=2, iterations=3, server_epochs=3)


def context(
    inputs: torch.Tensor, labels: torch.Tensor, model: Any = None, classes: int = 3
) -> ClientContext:
    shape = tuple(inputs.shape[1:])
    model = model or ConvNet(shape, classes, width=4)
    task = Task(model, shape, classes, 1, 1, Scaling((0.5,), (0.25,)))
    records = Records(Split(inputs, labels), torch.arange(len(labels)), task.scaling)
    return ClientContext(task, 1, 7, Rng(3), data=records)


def digits(*labels: int) -> ClientContext:
    generator = Rng(0).torch()
    pixels = torch.randint(0, 256, (len(labels), 1, 8, 8), generator=generator, dtype=torch.uint8)
    return context(pixels, torch.tensor(labels))


def message(ctx: ClientContext) -> Weights:
    return Weights(ctx.task.model.init(Rng(1).torch()))


def test_one_iteration_is_the_obvious_loop() -> None:
    ctx = digits(0, 0, 0, 2, 2, 2, 2)
    down = message(ctx)
    method = FedDM(images_per_class=2, iterations=1, radius=0.0, pixel_learning_rate=0.7)
    before = dataclasses.replace(method, iterations=0).client(ctx, down, None)[0].synthetic
    after = method.client(ctx, down, None)[0]
    x, y = ctx.records.all()
    pixels = before.images.clone().requires_grad_(True)
    loss = torch.zeros(())
    for label in (0, 2):
        wanted = ctx.task.model.features(down.params, x[y == label])[-2:]
        got = ctx.task.model.features(down.params, pixels[before.labels == label])[-2:]
        for a, b in zip(wanted, got, strict=True):
            loss = loss + (a.flatten(1).mean(0) - b.flatten(1).mean(0)).square().sum()
    expected = pixels - 0.7 * torch.autograd.grad(loss, pixels)[0]
    assert torch.allclose(after.synthetic.images, expected, atol=1e-5)
    assert after.loss == pytest.approx(float(loss.detach()), rel=1e-5)


def test_several_steps_per_draw_share_one_real_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a radius of 0 and a batch of all records every draw is the same: two steps at one draw
    are one step at each of two, and the real side is computed half as often."""
    means: list[int] = []
    compute = matching.class_means

    def counted(*given: Any) -> Any:
        means.append(1)
        return compute(*given)

    monkeypatch.setattr(distil, "class_means", counted)
    ctx = digits(0, 0, 0, 2, 2, 2, 2)
    down = message(ctx)
    method = FedDM(images_per_class=2, iterations=4, radius=0.0, pixel_learning_rate=0.7)
    once = method.client(ctx, down, None)[0].synthetic
    assert len(means) == 4
    shared = dataclasses.replace(method, iterations=2, steps_per_draw=2)
    twice = shared.client(ctx, down, None)[0].synthetic
    assert len(means) == 6
    assert torch.allclose(once.images, twice.images, atol=1e-5)


def test_steps_of_few_images_are_smaller_after_the_first_round() -> None:
    """A mean over n images moves each of them by 1/n of its gradient: below ten, the rate is
    n / 10 of the given one at trained weights. Adam's steps do not depend on n."""
    method = FedDM(images_per_class=3, pixel_learning_rate=2.0)
    assert method.in_round(1) is method
    assert method.in_round(2).pixels.learning_rate == pytest.approx(0.6)
    for same in (
        dataclasses.replace(method, careful=False),
        dataclasses.replace(method, images_per_class=10),
        dataclasses.replace(method, images_per_class=40),
        dataclasses.replace(method, pixel_optimiser="adam"),
    ):
        assert same.in_round(2) is same
    ctx = digits(0, 0, 0, 2, 2, 2, 2)
    down = message(ctx)
    plain = dataclasses.replace(method, images_per_class=2, iterations=1, radius=0.0, careful=False)
    late = dataclasses.replace(ctx, round=2)
    found = dataclasses.replace(plain, careful=True).client(late, down, None)[0]
    smaller = dataclasses.replace(plain, pixel_learning_rate=0.4).client(late, down, None)[0]
    assert torch.equal(found.synthetic.images, smaller.synthetic.images)
    larger = plain.client(late, down, None)[0]
    assert not torch.allclose(found.synthetic.images, larger.synthetic.images)


def test_what_is_matched_is_what_is_sent() -> None:
    """One step at the rounded pixels, whose gradient moves the pixels themselves."""
    ctx = digits(0, 0, 0, 2, 2, 2, 2)
    ctx = dataclasses.replace(ctx, task=dataclasses.replace(ctx.task, sent_bits=1))
    down = message(ctx)
    method = FedDM(images_per_class=2, iterations=1, radius=0.0, match_as_sent=True)
    start = dataclasses.replace(method, iterations=0).client(ctx, down, None)[0].synthetic.images
    after = method.client(ctx, down, None)[0].synthetic
    x, y = ctx.records.all()
    scaling = ctx.task.scaling
    seen = scaling((scaling.undo(start) >= 0.5).float()).requires_grad_(True)
    loss = torch.zeros(())
    for label in (0, 2):
        wanted = ctx.task.model.features(down.params, x[y == label])[-2:]
        got = ctx.task.model.features(down.params, seen[after.labels == label])[-2:]
        for a, b in zip(wanted, got, strict=True):
            loss = loss + (a.flatten(1).mean(0) - b.flatten(1).mean(0)).square().sum()
    expected = start - torch.autograd.grad(loss, seen)[0]
    assert torch.allclose(after.images, expected, atol=1e-5)


def test_matching_as_sent_needs_a_codec_with_levels(tmp_path: Path) -> None:
    wrong = {"method.match_as_sent": True, "wire.up": "float32"}
    with pytest.raises(RequestError, match=r"method\.match_as_sent: .*set wire\.up to bits8"):
        fedstill.run("feddm", out=tmp_path / "run", set=wrong)
    assert not (tmp_path / "run").exists()
    right = dataclasses.replace(SMALL, match_as_sent=True, images_per_class=1)
    federation = toy_run(right, tmp_path / "toy", rounds=1, codec="bits2+context")
    images = load_set(tmp_path / "toy" / "synthetic" / "round-0001.safetensors").images
    levels = federation.built.dataset.scaling.undo(images) * 3
    assert torch.allclose(levels, levels.round(), atol=1e-4)


def record(made: list[tuple[int, int]], step: int, steps: int) -> None:
    made.append((step, steps))


def test_given_steps_come_before_epochs_and_epochs_before_default_steps() -> None:
    steps = dataclasses.replace(SMALL, server_epochs=None, server_steps=2)
    both = dataclasses.replace(SMALL, server_steps=4)  # epochs may be a default, as in psg
    ctx = digits(0, 0, 1, 1)  # four images: an epoch is one step
    for method, expected in ((steps, 2), (both, 4), (SMALL, 3)):
        made: list[tuple[int, int]] = []
        server = ServerContext(ctx.task, 1, Rng(0), partial(record, made))
        start = method.init(server)
        reply, _ = method.client(ctx, method.broadcast(server, start), None)
        method.server(server, start, [Reply(0, reply)])
        assert made[-1] == (expected, expected)


def test_default_steps_depend_on_the_kind_of_records() -> None:
    task = digits(0, 1).task
    steps = {
        kind: FedDM().steps_on(dataclasses.replace(task, kind=kind)) for kind in get_args(Kind)
    }
    assert steps == {"writing": 600, "grey": 600, "photo": 600, "tiny": 150, "other": 40}
    assert FedDM(server_epochs=3).steps_on(task) is None  # counted in epochs
    assert PSG(server_steps=7).steps_on(task) == 7  # though its epochs have a default
    assert PSG().steps_on(task) is None


def test_images_start_from_records_of_their_class_or_from_noise() -> None:
    ctx = digits(0, 0, 0, 2, 2)
    real, _ = dataclasses.replace(SMALL, iterations=0).client(ctx, message(ctx), None)
    x, y = ctx.records.all()
    assert real.synthetic.labels.tolist() == [0, 0, 2, 2]
    for image, label in zip(real.synthetic.images, real.synthetic.labels, strict=True):
        assert any(torch.equal(image, record) for record in x[y == label])
    assert not torch.equal(real.synthetic.images[0], real.synthetic.images[1])
    noise, _ = dataclasses.replace(SMALL, iterations=0, initial="noise").client(
        ctx, message(ctx), None
    )
    assert not any(torch.equal(noise.synthetic.images[0], record) for record in x)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("augment", ["none", "dsa"])
def test_matching_brings_noise_nearer_to_the_records(optimiser: Any, augment: Any) -> None:
    ctx = digits(0, 0, 0, 2, 2, 1)
    method = FedDM(
        images_per_class=3,
        iterations=40,
        initial="noise",
        pixel_optimiser=optimiser,
        pixel_learning_rate=0.05 if optimiser == "adam" else 0.3,
        radius=0.1,
        augment=augment,
    )
    first = dataclasses.replace(method, iterations=1).client(ctx, message(ctx), None)[0].loss
    assert method.client(ctx, message(ctx), None)[0].loss < 0.8 * first


def test_a_real_batch_is_a_part_of_each_class() -> None:
    ctx = digits(*[0] * 9, *[1] * 2, *[2] * 5)
    some = dataclasses.replace(SMALL, real_batch=2).client(ctx, message(ctx), None)[0]
    every = SMALL.client(ctx, message(ctx), None)[0]
    assert not torch.equal(some.synthetic.images, every.synthetic.images)


def test_more_images_than_records_repeats_them_and_says_so() -> None:
    ctx = digits(0, 2, 2)  # a class with one record
    with pytest.warns(UserWarning, match="fewer records than images_per_class"):
        reply, _ = FedDM(images_per_class=5, iterations=2).client(ctx, message(ctx), None)
    assert reply.synthetic.labels.tolist() == [0] * 5 + [2] * 5
    assert torch.isfinite(reply.synthetic.images).all()


def test_a_client_with_one_record_works() -> None:
    ctx = digits(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reply, _ = SMALL.client(ctx, message(ctx), None)
    assert reply.synthetic.labels.tolist() == [1, 1]
    assert torch.isfinite(reply.synthetic.images).all()


def test_nan_in_the_records_is_named() -> None:
    inputs = torch.rand(4, 1, 8, 8)
    inputs[2, 0, 3, 3] = float("nan")
    ctx = context(inputs, torch.tensor([0, 0, 1, 1]))
    with pytest.raises(RunError, match="client 7: record 2 holds NaN"):
        SMALL.client(ctx, message(ctx), None)


def test_records_that_are_no_images_are_refused() -> None:
    tokens = torch.ones(3, 5, dtype=torch.int64)
    model = MLP((5,), 3)
    task = Task(model, (5,), 3, 1, 1, Scaling((), ()))
    records = Records(Split(tokens, torch.tensor([0, 1, 2])), torch.arange(3), task.scaling)
    ctx = ClientContext(task, 1, 0, Rng(0), data=records)
    with pytest.raises(RunError, match="not images"):
        SMALL.client(ctx, Weights(model.init(Rng(0).torch())), None)


def test_early_stop_ends_the_loop() -> None:
    ctx = digits(0, 0, 2)
    reported: list[tuple[int, int]] = []
    watched = dataclasses.replace(ctx, progress=lambda step, steps: reported.append((step, steps)))
    method = FedDM(images_per_class=1, iterations=200, radius=2.0, patience=5, tolerance=0.05)
    method.client(watched, message(ctx), None)
    assert 5 < reported[-1][0] < 200
    reported.clear()
    FedDM(images_per_class=1, iterations=20, patience=0).client(watched, message(ctx), None)
    assert reported[-1] == (20, 20)


def test_warm_start_continues_from_the_last_set() -> None:
    ctx = digits(0, 0, 2, 2)
    method = dataclasses.replace(SMALL, warm_start=True)
    initial_state = method.init_client(ctx.task)
    assert initial_state == LastSet()
    assert SMALL.init_client(ctx.task) is None
    reply, state = method.client(ctx, message(ctx), initial_state)
    assert isinstance(state, LastSet)
    stored = tree.load(tree.dump(state), LastSet)
    later = dataclasses.replace(ctx, round=2, rng=Rng(99))
    still, _ = dataclasses.replace(method, iterations=0).client(later, message(ctx), stored)
    assert torch.equal(still.synthetic.images, reply.synthetic.images)


def replies_of(*sizes_and_records: tuple[int, int]) -> list[Reply[Distilled]]:
    generator = Rng(2).torch()
    return [
        Reply(
            client,
            Distilled(
                SyntheticSet(
                    torch.randn(size, 1, 8, 8, generator=generator), torch.arange(size) % 10
                ),
                records,
                1.0,
            ),
        )
        for client, (size, records) in enumerate(sizes_and_records)
    ]


def test_weights_by_records_are_shares_of_the_clients() -> None:
    replies = replies_of((2, 30), (8, 10))
    pool = FedDM(weighting="records").pool(replies)
    assert torch.allclose(pool.weights[:2].sum() / 10, torch.tensor(0.75))
    assert torch.allclose(pool.weights[2:].sum() / 10, torch.tensor(0.25))
    assert FedDM().pool(replies).weights.tolist() == [1.0] * 10


def test_the_number_of_records_is_sent_only_when_requested() -> None:
    ctx = digits(0, 0, 2, 2)
    assert SMALL.client(ctx, message(ctx), None)[0].records == 0
    weighted = dataclasses.replace(SMALL, weighting="records")
    assert weighted.client(ctx, message(ctx), None)[0].records == 4
    assert SMALL.upload(ctx.task).numbers["records"] == (0, 0)


@pytest.mark.parametrize("radius", [0.0, 0.3])
def test_the_server_stays_in_the_ball(radius: float) -> None:
    setup = toy_experiment(SMALL)
    ctx = ServerContext(setup.task, 1, Rng(0))
    method = FedDM(radius=radius, server_learning_rate=1.0, server_epochs=20)
    state = method.init(ctx)
    after = method.server(ctx, state, replies_of((5, 0), (5, 0)))
    distance = float(norm(subtract(after.params, state.params)))
    assert distance <= radius * (1 + 1e-5)
    assert distance >= 0.9 * radius


def test_memory_keeps_the_last_rounds_and_trains_on_them() -> None:
    setup = toy_experiment(SMALL)
    ctx = ServerContext(setup.task, 1, Rng(0))
    method = dataclasses.replace(SMALL, memory=2, server_batch=1000, server_epochs=1)
    state = method.init(ctx)
    rounds = [replies_of((number, 0)) for number in (1, 2, 3, 4)]
    for replies in rounds:
        before, state = state, method.server(ctx, state, replies)
    assert [len(pool.images) for pool in state.memory] == [3, 4]
    assert tree.load(tree.dump(state), Surrogate).memory[1].labels.tolist() == [0, 1, 2, 3]
    # The last round trained on the images of three.
    forgetful = dataclasses.replace(method, memory=0)
    together = [Reply(0, r.message) for number in (1, 2, 3) for r in rounds[number]]
    same = forgetful.server(ctx, Surrogate(before.params), together)
    assert torch.allclose(as_vector(same.params), as_vector(state.params), atol=1e-6)
    assert forgetful.server(ctx, state, rounds[0]).memory == ()


def test_a_run_uploads_pairs_times_images_times_pixels(tmp_path: Path) -> None:
    federation = toy_run(SMALL, tmp_path / "run")
    pairs = sum(
        len(federation.built.runner.records.of(client, federation.built.task).labels.unique())
        for client in range(3)
    )
    stored = load_set(tmp_path / "run" / "synthetic" / "round-0002.safetensors")
    assert stored.images.numel() == pairs * 2 * 64
    assert stored.metadata.round == 2
    floats, labels = 4 * pairs * 2 * 64, 8 * pairs * 2
    headers = federation.history[1].up_bytes - floats - labels
    assert 0 < headers < 3 * 1024
    assert federation.history[1].details["matching_loss"] > 0


def test_run_and_resume_through_the_front_door(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "method.iterations": 2,
        "method.server_epochs": 2,
        "method.images_per_class": 1,
        "method.warm_start": True,
        "method.memory": 1,
        "method.weighting": "records",
    }
    whole = fedstill.run("feddm", rounds=2, workers=1, out=tmp_path / "whole", set=settings)
    fedstill.run("feddm", rounds=2, workers=1, out=tmp_path / "again", set=settings)
    for name in ("model.safetensors", "synthetic/round-0002.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert whole.metrics[-1].failed == {}
    again = fedstill.run(out=tmp_path / "whole", resume=True, workers=1)
    assert again.summary.accuracy == whole.summary.accuracy
