"""The private forms of the other methods: references, limits, and no leak besides the mechanism."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import fedstill
from fedstill.errors import RequestError
from fedstill.methods import METHODS
from fedstill.methods.distdd import DistDD
from fedstill.methods.dynafed import DynaFed
from fedstill.methods.fedavg import FedAvg
from fedstill.methods.fedsynth import FedSynth, SteppedBatches
from fedstill.methods.random_mask import RandomMask, SeededWeights, draw_mask
from fedstill.methods.shared.local_training import LocalSteps
from fedstill.methods.shared.messages import Weights
from fedstill.models import MLP
from fedstill.privacy.mechanism import COUNT_SHARE
from fedstill.records import Records
from fedstill.rng import Rng
from fedstill.steps.class_gradients import class_gradients
from fedstill.testing import TOY_PRIVACY, as_vector, bits, on, toy_experiment, toy_run, toy_text
from fedstill.types import ClientContext, ServerContext, Task
from tests.methods.small import SMALL, SMALL_PRIVATE
from tests.privacy.doors import private_context, some_records, toy_task
from tests.privacy.sanitised import clipped_gradients, noise_like, noisy_mean

PRIVATE = [name for name, cls in METHODS.items() if cls().private_form(1.0) is not None]
SYNTH = FedSynth(
    **FedSynth.PRIVATE_DEFAULTS,
    batches=1,
    batch_size=3,
    iterations=1,
    synthetic_optimiser="sgd",
    input_learning_rate=0.7,
)


def small_private(name: str) -> Any:
    cls = METHODS[name]
    settings = {**SMALL.get(name, {}), **SMALL_PRIVATE.get(name, {})}
    if issubclass(cls, LocalSteps):
        settings["local_steps"] = 2
    return cls(**{**cls.PRIVATE_DEFAULTS, **settings})


def weights(task: Task) -> Weights:
    return Weights(task.model.init(Rng(1).torch()))


def relabelled(records: Records) -> Records:
    """Other records of one class alone, and fewer."""
    split = dataclasses.replace(records.split, labels=torch.zeros_like(records.split.labels))
    return dataclasses.replace(records, split=split, index=records.index[:3])


@pytest.mark.parametrize("name", PRIVATE)
def test_records_that_are_not_sampled_show_nowhere(tmp_path: Path, name: str) -> None:
    """With samples that are always empty the reply is the same, bit by bit, for any records."""
    features = "model" in METHODS[name].DEFAULTS
    network = MLP((7,), 3, depth=0) if features else MLP((1, 8, 8), 3, width=5)
    method, task = small_private(name), toy_task(network)
    server = ServerContext(task, 1, Rng(2))
    down = method.broadcast(server, method.init(server))
    replies = []
    for number, records in enumerate((some_records(task, 9), relabelled(some_records(task, 9, 1)))):
        ctx = private_context(
            tmp_path / str(number), records, task, rate=1e-12, sigma=1.0, clip=1.0, size=10**13
        )
        up, state = method.client(ctx, down, method.init_client(task))
        replies.append((bits(up), bits(state)))
    assert replies[0] == replies[1]


@pytest.mark.parametrize("name", sorted(set(METHODS) - set(PRIVATE)))
def test_all_other_methods_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match=f"privacy: {name} has no private form"):
        fedstill.run(name, out=tmp_path / "run", rounds=1, epsilon=3.0)
    assert not (tmp_path / "run").exists()


def test_distdd_is_the_obvious_loop(tmp_path: Path) -> None:
    """One sample of all records, sums by class, divided by counts out of the same release."""
    task = toy_task()
    records = some_records(task, 14)
    how: dict[str, Any] = {"rate": 0.6, "clip": 0.5, "sigma": 0.1}
    ctx = private_context(tmp_path, records, task, size=12, **how)
    down = weights(task)
    up = DistDD().client(ctx, down, None)[0]
    assert up.classes.tolist() == [0, 1, 2]
    vector_clip = how["clip"] * (1 - COUNT_SHARE**2) ** 0.5
    found = clipped_gradients(task, down.params, records, how["rate"], vector_clip)
    shapes = [torch.Size((3, *v.shape)) for v in down.params.values()] + [torch.Size((3,))]
    *sums, counts = noise_like(shapes, how["sigma"] * how["clip"])
    counts = counts / (COUNT_SHARE * how["clip"])
    for label, gradient in found:
        counts[label] += 1
        for total, part in zip(sums, gradient, strict=True):
            total[label] += part
    assert len(found) not in (0, 14)
    for total, (name, released) in zip(sums, up.gradients.items(), strict=True):
        for label in range(3):
            divisor = max(float(counts[label]), 0.6 * 12 / 3)
            assert torch.allclose(released[label], total[label] / divisor, atol=1e-6), name


def test_distdd_without_noise_and_clipping_is_the_plain_one(tmp_path: Path) -> None:
    task = toy_task()
    records = some_records(task, 9)
    balanced = dataclasses.replace(records.split, labels=torch.arange(9) % 3)
    records = dataclasses.replace(records, split=balanced)
    params = weights(task).params
    plain = ClientContext(task, 1, 0, Rng(3), data=records)
    classes, expected = class_gradients(plain, params, 256)
    up = DistDD().client(private_context(tmp_path, records, task), Weights(params), None)[0]
    assert torch.equal(up.classes, classes)
    for name, gradient in expected.items():
        assert torch.allclose(up.gradients[name], gradient, atol=1e-6)


def test_distdd_of_a_class_without_records_is_noise_of_bounded_length(tmp_path: Path) -> None:
    """Noisy counts are far below zero in places: no one divides by them."""
    task = toy_task(classes=10)
    records = relabelled(some_records(task, 30))
    sizes = {"sigma": 4.0, "clip": 1.0, "rate": 1.0, "size": 100}
    ctx = private_context(tmp_path, records, task, **sizes)
    up = DistDD().client(ctx, weights(task), None)[0]
    released = torch.cat([g.flatten(1) for g in up.gradients.values()], 1)
    assert released.shape == (10, task.model.size)
    # Noise of standard deviation sigma * clip, divided by the even share of 10 or by more.
    assert float(released[1:].std(1).max()) < 4.0 / 10 * 1.2


def test_fedsynth_backpropagates_the_sanitised_gradient(tmp_path: Path) -> None:
    """x - eta d<g, w_syn(x)>/dx with g the noisy mean at w_syn, through one large graph."""
    task = toy_task(MLP((1, 8, 8), 3, width=5))
    records = some_records(task, 9)
    how: dict[str, Any] = {"rate": 0.5, "clip": 0.4, "sigma": 0.3, "size": 11}
    ctx = private_context(tmp_path, records, task, **how)
    down = weights(task)
    up = SYNTH.client(ctx, down, None)[0]
    start = torch.randn(3, *task.shape, generator=ctx.rng.at("start").torch())
    x, y = start.requires_grad_(True), torch.tensor([0, 1, 2])
    first = {k: v.clone().requires_grad_(True) for k, v in down.params.items()}
    loss = task.loss(task.model.apply(first, x), y).mean()
    gradient = torch.autograd.grad(loss, list(first.values()), create_graph=True)
    w_syn = {k: w - 0.1 * g for (k, w), g in zip(first.items(), gradient, strict=True)}
    detached = {k: v.detach() for k, v in w_syn.items()}
    target = noisy_mean(task, detached, records, **how)
    moved = torch.autograd.grad(list(w_syn.values()), x, target)[0]
    assert torch.allclose(up.batches.x[0], x - 0.7 * moved, atol=1e-5)
    assert up.batches.y.tolist() == [[0, 1, 2]]
    assert (up.records, up.loss_before, up.loss_after) == (0, 0.0, 0.0)


@pytest.mark.parametrize("labels", ["fixed", "trainable"])
@pytest.mark.parametrize("step_sizes", ["fixed", "trainable"])
def test_fedsynth_without_noise_and_clipping_is_the_plain_one(
    tmp_path: Path, labels: Any, step_sizes: Any
) -> None:
    task = toy_task(MLP((1, 8, 8), 3, width=5))
    records = some_records(task, 9)
    method = dataclasses.replace(
        SYNTH, iterations=3, batches=2, labels=labels, step_sizes=step_sizes
    )
    plain = ClientContext(task, 1, 0, Rng(3), data=records)
    expected = method.client(plain, weights(task), None)[0]
    private = private_context(tmp_path, records, task)
    found = method.client(private, weights(task), None)[0]
    assert torch.allclose(found.batches.x, expected.batches.x, atol=1e-5)
    assert torch.allclose(found.batches.y, expected.batches.y, atol=1e-5)
    if step_sizes == "trainable":
        assert isinstance(found, SteppedBatches)
        assert isinstance(expected, SteppedBatches)
        assert torch.allclose(found.step_sizes, expected.step_sizes, atol=1e-6)
    assert private.private._ledger.count == 3  # type: ignore[union-attr]


def test_fedsynth_repeats_the_update_of_private_fedavg(tmp_path: Path) -> None:
    """``target = "update"``: the steps of DP-SGD are its only accesses. Without noise and clipping
    it is the plain method on full batches."""
    task = toy_task(MLP((1, 8, 8), 3, width=5))
    records = some_records(task, 9)
    method = dataclasses.replace(
        SYNTH, target="update", iterations=4, local_steps=3, local_batch=100
    )
    plain = ClientContext(task, 1, 0, Rng(3), data=records)
    expected = method.client(plain, weights(task), None)[0]
    private = private_context(tmp_path, records, task)
    found = method.client(private, weights(task), None)[0]
    assert torch.allclose(found.batches.x, expected.batches.x, atol=1e-5)
    assert private.private._ledger.count == method.private_form(1.0).accesses == 3  # type: ignore[union-attr]
    by_epochs = dataclasses.replace(method, local_steps=None, local_epochs=2)
    assert by_epochs.private_form(0.1).accesses == 20


@pytest.mark.parametrize(
    ("setting", "value"), [("initial", "real"), ("report_losses", True), ("weighting", "records")]
)
def test_what_would_leak_of_fedsynth_is_refused(tmp_path: Path, setting: str, value: Any) -> None:
    settings = {"privacy.sigma": 1.0, f"method.{setting}": value}
    with pytest.raises(RequestError) as error:
        fedstill.run("fedsynth", out=tmp_path / "run", rounds=1, set=settings)
    assert str(error.value).startswith(f"method.{setting} = {value}: ")


def test_losses_that_are_not_requested_are_not_sent() -> None:
    """The schema has no room for them, and the report does not make them up."""
    task = toy_experiment(SYNTH).task
    schema = SYNTH.upload(task)
    assert schema.numbers["loss_before"] == schema.numbers["loss_after"] == (0.0, 0.0)
    open_schema = dataclasses.replace(SYNTH, report_losses=True).upload(task)
    assert open_schema.numbers["loss_after"][1] > 0


def test_fedsynth_with_privacy_on_text(tmp_path: Path) -> None:
    with on(toy_text):
        ran = toy_run(SYNTH, tmp_path / "run", rounds=1, privacy=TOY_PRIVACY)
    assert "loss_before" not in ran.history[-1].details
    assert (ran.history[-1].epsilon or 0) > 0


def test_random_mask_masks_the_sanitised_update(tmp_path: Path) -> None:
    task = toy_task(MLP((1, 8, 8), 3, width=5))
    records = some_records(task, 9)
    how: dict[str, Any] = {"sigma": 1.0, "clip": 1.0, "rate": 0.5, "size": 40}
    params = weights(task).params
    settings: dict[str, Any] = {**FedAvg.PRIVATE_DEFAULTS, "local_steps": 3}
    whole = FedAvg(**settings).client(
        private_context(tmp_path / "a", records, task, **how), Weights(params), None
    )[0]
    method = RandomMask(**settings, compression=4)
    ctx = private_context(tmp_path / "b", records, task, **how)
    up = method.client(ctx, SeededWeights(params, 7), None)[0]
    mask = draw_mask(7, ctx.client, task.model.size, method.kept(task))
    assert torch.equal(up.values, as_vector(whole.update)[mask])
    assert up.records == whole.records == 40
    assert ctx.private._ledger.count == method.private_form(0.5).accesses == 3  # type: ignore[union-attr]


def test_dynafed_clients_do_what_private_fedavg_does(tmp_path: Path) -> None:
    """All that it adds is the server's, which has no records and no door."""
    task = toy_task(MLP((1, 8, 8), 3, width=5))
    records = some_records(task, 9)
    settings: dict[str, Any] = {**DynaFed.PRIVATE_DEFAULTS, "local_steps": 2}
    replies = [
        method.client(
            private_context(tmp_path / name, records, task, sigma=1.0, clip=1.0, rate=0.5),
            weights(task),
            None,
        )[0]
        for name, method in (("fedavg", FedAvg(**settings)), ("dynafed", DynaFed(**settings)))
    ]
    assert bits(replies[0]) == bits(replies[1])
    assert DynaFed(**settings).private_form(0.5) == FedAvg(**settings).private_form(0.5)


@pytest.mark.parametrize("method", ["random-mask", "dynafed", "central"])
def test_sizes_are_no_weights_in_what_follows_fedavg(tmp_path: Path, method: str) -> None:
    settings = {"privacy.sigma": 1.0, "method.weighting": "records"}
    with pytest.raises(RequestError, match=r"method\.weighting = records: "):
        fedstill.run(method, out=tmp_path / "run", rounds=1, set=settings)
