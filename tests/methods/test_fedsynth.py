"""FedSynth: a step on paper, the obvious loop, the server's bits, sizes from rates, and text."""

import itertools
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import fedstill
from fedstill import wire
from fedstill.errors import RequestError, RunError, WireError
from fedstill.methods.fedavg import FedAvg
from fedstill.methods.fedsynth import FedSynth, SteppedBatches, SyntheticBatches
from fedstill.methods.shared.messages import Weights
from fedstill.models import MLP, Model
from fedstill.records import Records, Split
from fedstill.rng import Rng
from fedstill.runs.sets import load_set
from fedstill.scaling import Scaling
from fedstill.steps.unroll import Batches
from fedstill.testing import as_vector, toy_experiment, toy_run
from fedstill.types import ClientContext, Params, Reply, ServerContext, Task, cross_entropy

SMALL = FedSynth(batches=2, batch_size=2, iterations=2)
AS_IS = Scaling((), ())


def context(x: Tensor, y: Tensor, model: Model, classes: int, **task: Any) -> ClientContext:
    about = Task(model, tuple(x.shape[1:]), classes, 1, 1, AS_IS, **task)
    records = Records(Split(x, y), torch.arange(len(y)), AS_IS)
    return ClientContext(about, 1, 4, Rng(3), data=records)


def small_context(number: int = 6) -> ClientContext:
    x = torch.randn(number, 1, 2, 2, generator=Rng(0).torch())
    return context(x, torch.arange(number) % 3, MLP((1, 2, 2), 3, width=4, depth=1), 3)


def down(ctx: ClientContext) -> Weights:
    return Weights(ctx.task.model.init(Rng(1).torch()))


@dataclass(frozen=True)
class OneWeight(Model):
    """softmax([0, w x])."""

    def init(self, generator: torch.Generator) -> Params:
        return {"w": torch.tensor(0.0)}

    def features(self, params: Params, x: Tensor) -> tuple[Tensor, ...]:
        logit = params["w"] * x[:, :1]
        return (x, torch.cat([torch.zeros_like(logit), logit], 1))


def test_one_iteration_on_paper() -> None:
    """One record x = 2 of class 1 and w = 0. D starts as that record.

    w_syn = -eta_w (1/2 - 1) 2 = eta_w;  F'(w_syn) = -2 (1 - s(2 w_syn));
    d w_syn / dx = -eta_w (1/2 - 1) = eta_w / 2, for the other term has a factor w = 0.
    """
    ctx = context(torch.tensor([[2.0]]), torch.tensor([1]), OneWeight(), 2)
    method = FedSynth(
        batches=1,
        batch_size=1,
        iterations=1,
        learning_rate=0.6,
        synthetic_optimiser="sgd",
        input_learning_rate=0.9,
    )
    up, _ = method.client(ctx, down(ctx), None)
    gradient = -2 * (1 - 1 / (1 + math.exp(-2 * 0.6)))
    moved = 2.0 - 0.9 * gradient * 0.6 / 2
    assert float(up.batches.x) == pytest.approx(moved)
    assert up.batches.y.tolist() == [[1]]
    assert up.loss_before == pytest.approx(math.log(2))
    w_syn = 0.6 * moved / 2
    assert up.loss_after == pytest.approx(math.log(1 + math.exp(-2 * w_syn)))
    server = ServerContext(ctx.task, 1, Rng(0))
    after = method.server(server, down(ctx), [Reply(4, up)])
    assert float(after.params["w"]) == pytest.approx(w_syn)


def obvious_step(
    ctx: ClientContext, start: Params, x: Tensor, labels: Tensor, log_sizes: Tensor, *, soft: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the loss over all records, by one graph through all steps."""
    x, log_sizes = (t.clone().requires_grad_(True) for t in (x, log_sizes))
    labels = labels.clone().requires_grad_(True) if soft else labels
    weights = {k: v.clone().requires_grad_(True) for k, v in start.items()}
    for batch, label, rate in zip(x, labels, log_sizes.exp(), strict=True):
        y = label.softmax(-1) if soft else label.long()
        loss = cross_entropy(ctx.task.model.apply(weights, batch), y).mean()
        gradient = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        weights = {k: w - rate * g for (k, w), g in zip(weights.items(), gradient, strict=True)}
    inputs, classes = ctx.records.all()
    loss = cross_entropy(ctx.task.model.apply(weights, inputs), classes).mean()
    if not soft:
        by_x, by_sizes = torch.autograd.grad(loss, [x, log_sizes])
        return by_x, torch.zeros_like(labels), by_sizes
    by_x, by_labels, by_sizes = torch.autograd.grad(loss, [x, labels, log_sizes])
    return by_x, by_labels, by_sizes


# Cosine decay over three iterations: (1 + cos(pi t / 3)) / 2.
@pytest.mark.parametrize(
    ("schedule", "decay"), [("constant", (1, 1, 1)), ("cosine", (1, 0.75, 0.25))]
)
@pytest.mark.parametrize("step_sizes", ["fixed", "trainable"])
@pytest.mark.parametrize("labels", ["fixed", "trainable"])
def test_iterations_are_the_obvious_loop(
    labels: Any, step_sizes: Any, schedule: Any, decay: tuple[float, ...]
) -> None:
    ctx = small_context()
    soft = labels == "trainable"
    method = FedSynth(
        batches=3,
        batch_size=2,
        labels=labels,
        iterations=3,
        learning_rate=0.5,
        synthetic_optimiser="sgd",
        input_learning_rate=0.7,
        label_learning_rate=2.0,
        step_sizes=step_sizes,
        step_size_learning_rate=0.4,
        schedule=schedule,
    )
    start = down(ctx)
    x, free = method.start(ctx, start.params)
    log_sizes = torch.full((3,), math.log(0.5))
    for factor in decay:
        by_x, by_free, by_sizes = obvious_step(ctx, start.params, x, free, log_sizes, soft=soft)
        x = x - factor * 0.7 * by_x
        free = free - factor * 2.0 * by_free if soft else free
        if step_sizes == "trainable":
            log_sizes = log_sizes - factor * 0.4 * by_sizes
    up, _ = method.client(ctx, start, None)
    if step_sizes == "trainable":
        assert isinstance(up, SteppedBatches)
        assert torch.allclose(up.step_sizes, log_sizes.exp(), atol=1e-6)
        assert not torch.allclose(up.step_sizes, torch.tensor(0.5), atol=1e-4)
    else:
        assert type(up) is SyntheticBatches
    assert torch.allclose(up.batches.x, x, atol=1e-5)
    assert torch.allclose(up.batches.y, free.softmax(-1) if soft else free, atol=1e-6)
    assert up.loss_after < up.loss_before


SEEN: list[tuple[str, Params]] = []


@dataclass(frozen=True)
class Watched(FedSynth):
    def recovered(self, task: Task, down: Weights, up: SyntheticBatches) -> Params:
        params = super().recovered(task, down, up)
        SEEN.append(("weights", params))
        return params

    def record_gradient(self, ctx: ClientContext, params: Params, rng: Rng) -> tuple[Params, float]:
        SEEN.append(("records", params))
        return super().record_gradient(ctx, params, rng)


@pytest.mark.parametrize("step_sizes", ["fixed", "trainable"])
@pytest.mark.parametrize("labels", ["fixed", "trainable"])
def test_the_server_recovers_the_clients_weights_to_the_bit(
    labels: Any, step_sizes: Any, tmp_path: Path
) -> None:
    """Through the engine and the wire: the weights at which a client last measured its records
    are those that the server finds."""
    SEEN.clear()
    method = Watched(batches=3, batch_size=3, iterations=1, labels=labels, step_sizes=step_sizes)
    toy_run(method, tmp_path / "run", rounds=1)
    measured = [
        params
        for (before, _), (kind, params) in itertools.pairwise(SEEN)
        if (before, kind) == ("weights", "records")
    ]
    server = [params for kind, params in SEEN[-3:] if kind == "weights"]
    assert len(measured) == 3
    for at_client, at_server in zip(measured, server, strict=True):
        assert torch.equal(as_vector(at_client), as_vector(at_server))


def test_records_as_batches_are_a_step_of_fedavg() -> None:
    """E = 0 and one batch that is all records: one step of FedAvg on all of them."""
    ctx = small_context(6)
    method = FedSynth(batches=1, batch_size=6, iterations=0, learning_rate=0.2)
    up, _ = method.client(ctx, down(ctx), None)
    found = method.recovered(ctx.task, down(ctx), up)
    average = FedAvg(batch_size=100, learning_rate=0.2)
    update = average.client(ctx, down(ctx), None)[0].update
    expected = as_vector(down(ctx).params) + as_vector(update)
    assert torch.allclose(as_vector(found), expected, atol=1e-6)


def test_from_noise_nothing_is_sent_about_the_records() -> None:
    one, other = small_context(6), small_context(9)
    for labels in ("fixed", "trainable"):
        method = replace(SMALL, initial="noise", labels=labels, iterations=0)
        a, b = (method.client(ctx, down(ctx), None)[0].batches for ctx in (one, other))
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
    assert replace(SMALL, initial="noise").start(one, {})[1].flatten().tolist() == [0, 1, 2, 0]


def test_initial_noise_is_scaled() -> None:
    ctx = small_context()
    method = replace(SMALL, initial="noise")
    (x, y), (scaled, same) = (
        one.start(ctx, {}) for one in (method, replace(method, initial_scale=0.25))
    )
    assert torch.equal(scaled, 0.25 * x)
    assert torch.equal(y, same)


@pytest.mark.parametrize("initial", ["real", "noise"])
def test_predicted_labels_change_nothing_before_they_are_learnt(initial: Any) -> None:
    """The loss of a network's own predictions is least at the network, in every step of line 12."""
    ctx = small_context()
    method = replace(SMALL, labels="trainable", initial_labels="predicted", initial=initial)
    still, _ = replace(method, iterations=0).client(ctx, down(ctx), None)
    weights = as_vector(down(ctx).params)
    assert torch.allclose(as_vector(method.recovered(ctx.task, down(ctx), still)), weights)
    moved, _ = replace(method, iterations=20).client(ctx, down(ctx), None)
    assert not torch.allclose(as_vector(method.recovered(ctx.task, down(ctx), moved)), weights)
    assert moved.loss_after < moved.loss_before


@pytest.mark.parametrize("labels", ["fixed", "trainable"])
def test_target_update_follows_the_distance_to_the_clients_own_sgd(labels: Any) -> None:
    """Two iterations against one graph through both steps, with FedAvg's client as w_k."""
    ctx = small_context()
    soft, start = labels == "trainable", down(ctx)
    method = replace(
        SMALL,
        labels=labels,
        synthetic_optimiser="sgd",
        input_learning_rate=0.7,
        label_learning_rate=2.0,
        target="update",
        local_epochs=2,
        local_batch=4,
        local_learning_rate=0.3,
        local_decay="cosine",
    )
    late = replace(ctx, round=2, task=replace(ctx.task, rounds=4))
    average = FedAvg(local_epochs=2, batch_size=4, learning_rate=0.3, decay="cosine")
    own = replace(late, rng=late.rng.at("local"))
    update = as_vector(average.client(own, start, None)[0].update)
    x, free = method.start(late, start.params)
    for _ in range(2):
        inputs = [t.detach().requires_grad_(True) for t in ((x, free) if soft else (x,))]
        y = inputs[1].softmax(-1) if soft else free.long()
        w_syn = {k: w.clone().requires_grad_(True) for k, w in start.params.items()}
        for batch, label in zip(inputs[0], y, strict=True):
            loss = cross_entropy(ctx.task.model.apply(w_syn, batch), label).mean()
            gradient = torch.autograd.grad(loss, list(w_syn.values()), create_graph=True)
            pairs = zip(w_syn.items(), gradient, strict=True)
            w_syn = {k: w - method.learning_rate * g for (k, w), g in pairs}
        missed = torch.cat([w.flatten() for w in w_syn.values()]) - as_vector(start.params) - update
        distance = missed.square().sum() / update.square().sum() / 2
        moves = torch.autograd.grad(distance, inputs)
        x = x - 0.7 * moves[0]
        free = free - 2.0 * moves[1] if soft else free
    up, _ = method.client(late, start, None)
    assert torch.allclose(up.batches.x, x, atol=1e-5)
    assert torch.allclose(up.batches.y, free.softmax(-1) if soft else free, atol=1e-6)


def test_batches_that_repeat_the_update_stay_as_they_are() -> None:
    """One local step on all records, and D is these records: w_syn is w_k."""
    ctx = small_context(6)
    method = FedSynth(
        batches=1,
        batch_size=6,
        learning_rate=0.2,
        synthetic_optimiser="sgd",
        target="update",
        local_batch=100,
        local_learning_rate=0.2,
    )
    up, _ = method.client(ctx, down(ctx), None)
    still, _ = replace(method, iterations=0).client(ctx, down(ctx), None)
    assert torch.allclose(up.batches.x, still.batches.x, atol=1e-5)


def test_a_client_without_an_update_sends_none() -> None:
    """A flat loss: w_k is w, and the relative distance has nothing to divide by."""
    ctx = context(torch.zeros(3, 1), torch.tensor([0, 1, 1]), OneWeight(), 2)
    method = FedSynth(batches=1, batch_size=1, target="update", initial="noise")
    up, _ = method.client(ctx, down(ctx), None)
    assert torch.isfinite(up.batches.x).all()


def test_predictions_are_no_fixed_labels() -> None:
    with pytest.raises(RequestError, match=r"set method\.labels = 'trainable'"):
        FedSynth(initial_labels="predicted")


def test_step_sizes_stay_within_their_range() -> None:
    """A client whose step sizes leave it sends its ends; what lies outside is refused."""
    ctx = small_context()
    method = replace(SMALL, batches=4, step_sizes="trainable", learning_rate=0.1)
    x, labels = method.start(ctx, down(ctx).params)
    far = torch.tensor([-1e4, math.log(0.1 / 2000), math.log(0.3), 1e4])
    up = method.as_sent(x, labels, far)
    assert isinstance(up, SteppedBatches)
    assert torch.allclose(up.step_sizes, torch.tensor([1e-4, 1e-4, 0.3, 100.0]))
    schema = method.upload(ctx.task)
    again = wire.decode(wire.encode(up, schema), schema)
    assert isinstance(again, SteppedBatches)
    assert torch.equal(again.step_sizes, up.step_sizes)
    for bad in (up.step_sizes * 1.01, -up.step_sizes, torch.zeros(4), up.step_sizes[:3]):
        with pytest.raises(WireError, match="step_sizes"):
            schema.check(replace(up, step_sizes=bad))
    with pytest.raises(WireError, match="'step_sizes' is missing"):
        schema.check(replace(method, step_sizes="fixed").as_sent(x, labels, far))
    with pytest.raises(WireError, match="'step_sizes' was not declared"):
        replace(method, step_sizes="fixed").upload(ctx.task).check(up)


def test_real_starts_are_records_with_their_labels() -> None:
    ctx = small_context(3)
    x, y = ctx.records.all()
    up, _ = replace(SMALL, iterations=0).client(ctx, down(ctx), None)
    for image, label in zip(up.batches.x.flatten(0, 1), up.batches.y.flatten(), strict=True):
        assert any(torch.equal(image, one) and int(label) == int(y[i]) for i, one in enumerate(x))
    # Four examples of three records: every one, and one again.
    assert len(up.batches.x.flatten(0, 1).flatten(1).unique(dim=0)) == 3


def test_weighting_by_records_is_asked_for() -> None:
    ctx = small_context()
    assert SMALL.client(ctx, down(ctx), None)[0].records == 0
    weighted = replace(SMALL, weighting="records")
    assert weighted.client(ctx, down(ctx), None)[0].records == 6
    server = ServerContext(ctx.task, 1, Rng(0))
    ups = [
        SyntheticBatches(Batches(torch.full((1, 1, 1, 2, 2), v), torch.zeros(1, 1)), n, 1.0, 0.5)
        for v, n in ((1.0, 30), (2.0, 10))
    ]
    ups = [replace(up, batches=Batches(up.batches.x, up.batches.y.int())) for up in ups]
    replies = [Reply(k, up) for k, up in enumerate(ups)]
    w = as_vector(down(ctx).params)
    updates = [as_vector(weighted.recovered(ctx.task, down(ctx), up)) - w for up in ups]
    by_records = as_vector(weighted.server(server, down(ctx), replies).params)
    alike = as_vector(SMALL.server(server, down(ctx), replies).params)
    assert torch.allclose(by_records, w + 0.75 * updates[0] + 0.25 * updates[1], atol=1e-6)
    assert torch.allclose(alike, w + (updates[0] + updates[1]) / 2, atol=1e-6)
    assert SMALL.report(down(ctx), replies)["loss_after"] == 0.5


@given(
    rate=st.floats(0.2, 40.0),
    batches=st.integers(1, 6),
    labels=st.sampled_from(["fixed", "trainable"]),
    step_sizes=st.sampled_from(["fixed", "trainable"]),
)
def test_the_size_is_the_largest_that_keeps_the_rate(
    rate: float, batches: int, labels: Any, step_sizes: Any
) -> None:
    task = TASK
    method = FedSynth(compression=rate, batches=batches, labels=labels, step_sizes=step_sizes)
    numbers = 64 + (10 if labels == "trainable" else 1)
    largest = task.model.size / (batches * (numbers + (step_sizes == "trainable")))
    if rate > largest:
        with pytest.raises(RequestError, match="less than one example per batch"):
            method.upload(task)
        return
    payload = method.upload(task).payload("float32")
    assert 4 * task.model.size / payload >= rate * (1 - 1e-6)
    assert 4 * task.model.size / (payload + 4 * batches * numbers) < rate


SETUP = toy_experiment(SMALL)
TASK = SETUP.task


@pytest.mark.parametrize("step_sizes", ["fixed", "trainable"])
def test_the_uploaded_bytes_give_the_rate(step_sizes: Any, tmp_path: Path) -> None:
    method = FedSynth(compression=2.0, batches=2, iterations=1, step_sizes=step_sizes)
    federation = toy_run(method, tmp_path / "run", rounds=1)
    schema = method.upload(TASK)
    metrics = federation.history[0]
    assert metrics.details["compression"] == 4 * TASK.model.size / schema.payload("float32")
    header = metrics.up_bytes / 3 - schema.payload("float32")
    assert 0 < header < 600
    assert metrics.details["loss_after"] < metrics.details["loss_before"]


def test_a_rate_that_leaves_no_example_names_the_largest(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(RequestError) as error:
        fedstill.run("fedsynth", out=out, set={"method.compression": 50, "method.batches": 4})
    assert str(error.value) == (
        "method.compression: 50 leaves less than one example per batch; at most 42.253 is possible "
        "with 4 batches of examples of 65 numbers, 169.015 with method.batches=1"
    )
    assert error.value.exit_code == 2
    assert not out.exists()
    named = FedSynth(compression=42.253, batches=4)
    task = replace(TASK, model=fedstill.models.ConvNet((1, 8, 8), 10, width=32))
    assert named.size(task, named.example(task)) == (4, 1)


def test_size_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"method.compression: 8 and method.batch_size 2"):
        fedstill.run(
            "fedsynth",
            out=tmp_path / "run",
            set={"method.compression": 8.0, "method.batch_size": 2},
        )


def test_nan_in_the_records_is_named() -> None:
    x = torch.randn(4, 1, 2, 2)
    x[2, 0, 1, 1] = float("nan")
    ctx = context(x, torch.tensor([0, 1, 2, 0]), MLP((1, 2, 2), 3, width=4), 3)
    with pytest.raises(RunError, match="client 4: record 2 holds NaN"):
        SMALL.client(ctx, down(ctx), None)


def test_a_run_keeps_its_images_and_can_be_done_again(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "method.iterations": 1,
        "method.labels": "trainable",
        "method.weighting": "records",
        "model.width": 8,
        "method.compression": 1.0,
    }
    for name in ("one", "two"):
        fedstill.run("fedsynth", rounds=2, clients=3, workers=1, out=tmp_path / name, set=settings)
    for name in ("model.safetensors", "synthetic/round-0002.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    stored = load_set(tmp_path / "one" / "synthetic" / "round-0002.safetensors")
    assert stored.labels.shape == (len(stored.images), 10)
    assert torch.allclose(stored.labels.sum(1), torch.ones(len(stored.images)))


@dataclass(frozen=True)
class Bigrams(Model):
    """A network that reads tokens: an embedding, and a linear layer at every position."""

    def init(self, generator: torch.Generator) -> Params:
        return {
            "embedding": torch.randn(5, 2, generator=generator),
            "linear": torch.randn(5, 2, generator=generator),
        }

    def features(self, params: Params, x: Tensor) -> tuple[Tensor, ...]:
        inner = self.embed(params, x)
        return inner, self.apply_continuous(params, inner)

    @property
    def continuous_shape(self) -> tuple[int, ...]:
        return (3, 2)

    def apply_continuous(self, params: Params, x: Tensor) -> Tensor:
        return x @ params["linear"].T

    def embed(self, params: Params, x: Tensor) -> Tensor:
        return params["embedding"][x]


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the positions of each sequence."""
    return cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1)).view(len(logits), -1).mean(1)


@pytest.mark.parametrize("initial", ["real", "noise"])
@pytest.mark.parametrize("labels", ["fixed", "trainable"])
def test_text_has_synthetic_embeddings(labels: Any, initial: Any) -> None:
    text = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 0]])
    answers = text[:, 1:].clone()
    answers[2, 2] = -100  # padding: no answer is asked for here
    ctx = context(text[:, :-1], answers, Bigrams(), 5, loss=token_loss)
    method = FedSynth(
        batches=2, batch_size=2, iterations=30, labels=labels, initial=initial, learning_rate=0.5
    )
    up, _ = method.client(ctx, down(ctx), None)
    assert up.batches.x.shape == (2, 2, 3, 2)
    assert up.batches.y.shape == ((2, 2, 3, 5) if labels == "trainable" else (2, 2, 3))
    assert up.loss_after < 0.8 * up.loss_before
    schema = method.upload(ctx.task)
    again = wire.decode(wire.encode(up, schema), schema)
    server = ServerContext(ctx.task, 1, Rng(0))
    after = method.server(server, down(ctx), [Reply(4, again)])
    expected = as_vector(method.recovered(ctx.task, down(ctx), up))
    assert torch.allclose(as_vector(after.params), expected, atol=1e-6)
    assert method.synthetic(after, [Reply(4, again)]) == {}
