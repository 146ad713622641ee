"""Fed-GLOSS-DP: a step by the obvious loop, the published budgets, what it refuses."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fedstill
from fedstill.errors import RequestError
from fedstill.methods.fedgloss import FedGloss
from fedstill.methods.shared.messages import LastSet, Region
from fedstill.methods.shared.trusted_descent import Approximation
from fedstill.privacy.accounting import epsilon_of
from fedstill.private import PerRecord
from fedstill.records import SyntheticSet
from fedstill.rng import Rng
from fedstill.steps.augment import draw_augmentation
from fedstill.steps.gradient_matching import GradientDistance, grad_distance
from fedstill.testing import TOY_PRIVACY, bits, toy_experiment
from fedstill.types import ClientContext, Params, Reply, ServerContext, Task
from tests.privacy.doors import NO_CLIP, door, private_context, some_records, toy_task
from tests.privacy.sanitised import noisy_mean

COSINE = GradientDistance(normalize_rows=True, include_vectors=True)
DEFAULTS = FedGloss(**FedGloss.PRIVATE_DEFAULTS)
ONE = dataclasses.replace(
    DEFAULTS,
    images_per_class=2,
    trajectories=1,
    trajectory_steps=1,
    real_batches=1,
    pixel_steps=1,
    local_steps=0,
    pixel_learning_rate=3.0,
)
STILL = dataclasses.replace(ONE, pixel_steps=0)


def region(task: Task, radius: float = 1.5) -> Region:
    return Region(task.model.init(Rng(1).torch()), radius)


def test_one_pixel_step_is_the_obvious_loop(tmp_path: Path) -> None:
    """Per-record gradients of augmented records, clipped; noise; a public divisor; one step."""
    task = toy_task()
    records = some_records(task, 9)
    how = {"rate": 0.5, "clip": 0.7, "sigma": 0.2, "size": 12}
    ctx = private_context(tmp_path, records, task, **how)
    down = region(task)
    after = ONE.client(ctx, down, None)[0]
    # Noise of the named stream, balanced over all classes.
    shape = (3, 2, *task.shape)
    before = torch.randn(shape, generator=ctx.rng.at("images").torch()).flatten(0, 1)
    assert after.synthetic.labels.tolist() == [0, 0, 1, 1, 2, 2]
    change = draw_augmentation("dsa", ctx.rng.at("augment").torch(), flip=False)
    target = noisy_mean(task, down.params, records, change=change, **how)  # type: ignore[arg-type]
    pixels = before.clone().requires_grad_(True)
    weights = {k: v.clone().requires_grad_(True) for k, v in down.params.items()}
    loss = task.loss(task.model.apply(weights, change(pixels)), after.synthetic.labels).mean()
    gradient = torch.autograd.grad(
        loss, list(weights.values()), create_graph=True, allow_unused=True, materialize_grads=True
    )
    distance = grad_distance(target, gradient, COSINE)
    expected = pixels - 3.0 * torch.autograd.grad(distance, pixels)[0]
    assert torch.allclose(after.synthetic.images, expected, atol=1e-5)
    assert after.loss == pytest.approx(float(distance.detach()), rel=1e-4)
    assert (after.records, after.radius, after.norms) == (0, 1.5, None)


def test_without_noise_and_clipping_it_is_fed_gloss(tmp_path: Path) -> None:
    task = toy_task()
    records = some_records(task, 12)
    method = dataclasses.replace(
        ONE, trajectory_steps=2, real_batches=2, pixel_steps=2, local_steps=1
    )
    plain = ClientContext(task, 1, 0, Rng(3), data=records)
    private = private_context(tmp_path, records, task, rate=1.0, sigma=0.0, clip=NO_CLIP)
    expected = method.client(plain, region(task), None)[0]
    found = method.client(private, region(task), None)[0]
    assert torch.equal(found.synthetic.labels, expected.synthetic.labels)
    assert torch.allclose(found.synthetic.images, expected.synthetic.images, atol=1e-4)


class Watched:
    """A door that records the weights of each access."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.weights: list[Params] = []

    def noisy_mean(self, per_record: PerRecord, *, clip: float | None = None) -> Params:
        self.weights.append(per_record.params)  # type: ignore[attr-defined]
        released: Params = self.inner.noisy_mean(per_record, clip=clip)
        return released

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.mark.parametrize("eta", [1e-6, 1e3])
def test_accesses_do_not_depend_on_what_was_released(tmp_path: Path, eta: float) -> None:
    """A path that leaves the radius restarts: as many accesses as were planned."""
    task = toy_task()
    watched = Watched(door(tmp_path, some_records(task, 6), task, sigma=1.0, clip=1.0))
    ctx = ClientContext(task, 1, 0, Rng(3), private=watched)
    method = dataclasses.replace(
        ONE,
        trajectories=2,
        trajectory_steps=3,
        real_batches=2,
        local_steps=1,
        server_learning_rate=eta,
        decay="none",
    )
    down = region(task)
    method.client(ctx, down, None)
    assert len(watched.weights) == method.private_form(1.0).accesses == 12
    assert watched.inner._ledger.count == 12
    home = [bits(weights) == bits(down.params) for weights in watched.weights]
    one_path = [True, True, *[eta > 1] * 4]  # two batches at each of three points
    assert home == one_path * 2


def test_images_may_be_carried_over(tmp_path: Path) -> None:
    task = toy_task()
    ctx = private_context(tmp_path, some_records(task, 6), task)
    last = LastSet(torch.randn(3, 2, *task.shape, generator=Rng(8).torch()))
    warm = dataclasses.replace(STILL, warm_start=True)
    reply, state = warm.client(ctx, region(task), last)
    assert last.images is not None
    assert torch.equal(reply.synthetic.images, last.images.flatten(0, 1))
    assert bits(state) == bits(last)


def test_only_declared_classes_are_sent_and_sizes_are_the_declared_ones(tmp_path: Path) -> None:
    task = toy_task()
    ctx = private_context(
        tmp_path, some_records(task, 6), task, classes=torch.tensor([0, 2]), size=50
    )
    by_records = dataclasses.replace(STILL, weighting="records")
    reply = by_records.client(ctx, region(task), None)[0]
    assert reply.synthetic.labels.tolist() == [0, 0, 2, 2]
    assert reply.records == 50


def test_the_published_budgets_follow_from_the_defaults() -> None:
    """Sigma 1, q 0.0256, delta 1e-5: 2.79 after one round, 10.18 after fifteen."""
    accesses = DEFAULTS.private_form(0.0256).accesses
    assert accesses == 4 * 5 * 10
    assert epsilon_of(accesses, 0.0256, 1.0, 1e-5, "rdp") == pytest.approx(2.79, abs=0.005)
    assert epsilon_of(15 * accesses, 0.0256, 1.0, 1e-5, "rdp") == pytest.approx(10.18, abs=0.005)
    paper = (DEFAULTS.trajectories, DEFAULTS.local_steps, DEFAULTS.pixel_steps, DEFAULTS.radius)
    assert paper == (4, 2, 5, 1.5)  # R_b is 10 in the paper's text, 5 in the authors' settings
    assert (DEFAULTS.images_per_class, DEFAULTS.criterion) == (10, "cosine")
    assert DEFAULTS.warm_start


@pytest.mark.parametrize(
    ("rounds", "epsilon"), [(1, 2.79), pytest.param(15, 10.18, marks=pytest.mark.slow)]
)
def test_the_published_budgets_from_a_real_run(tmp_path: Path, rounds: int, epsilon: float) -> None:
    out = tmp_path / "run"
    result = fedstill.run(
        "fedgloss",
        out=out,
        rounds=rounds,
        workers=1,
        clients=1,
        partition="iid",
        model="mlp",
        set={
            "model.width": 4,
            "method.images_per_class": 1,
            "method.pixel_steps": 1,
            "method.most_iterations": 1,
            "method.augment": "none",
            "privacy.sigma": 1.0,
            "privacy.sampling_rate": 0.0256,
            "privacy.accountant": "rdp",
        },
    )
    assert result.summary.epsilon == pytest.approx(epsilon, abs=0.005)
    lines = (out / "ledger" / "client-00000.jsonl").read_text().splitlines()
    assert len(lines) == 200 * rounds
    assert {(a["q"], a["sigma"], a["clip"]) for a in map(json.loads, lines)} == {(0.0256, 1.0, 1.0)}


@pytest.mark.parametrize(
    ("setting", "value", "remedy"),
    [
        ("initial", "real", "method.initial = 'noise'"),
        ("radius_choice", "min", "'constant', or 'fixed'"),
        ("radius_choice", "median", "'constant', or 'fixed'"),
        ("radius_choice", "max", "'constant', or 'fixed'"),
        ("criterion", "calibrated", "'cosine+mse'"),
        ("weighting", "records", "privacy.public_size"),
    ],
)
def test_what_would_leak_is_refused(tmp_path: Path, setting: str, value: Any, remedy: str) -> None:
    settings = {"privacy.sigma": 1.0, f"method.{setting}": value}
    with pytest.raises(RequestError) as error:
        fedstill.run("fedgloss", out=tmp_path / "run", rounds=1, set=settings)
    assert not (tmp_path / "run").exists()
    assert str(error.value).startswith(f"method.{setting} = {value}: ")
    assert remedy in str(error.value)


@pytest.mark.parametrize("choice", ["constant", "fixed"])
def test_radii_that_no_record_decides(choice: Any) -> None:
    method = dataclasses.replace(ONE, radius_choice=choice)
    assert toy_experiment(method, privacy=TOY_PRIVACY).plan is not None


def test_the_server_goes_as_far_as_the_constant_radius() -> None:
    """Whatever radius a client's message claims."""
    method = dataclasses.replace(DEFAULTS, server_learning_rate=0.05, radius=0.3)
    server = ServerContext(toy_task(), 1, Rng(0))
    images = torch.randn(6, 1, 8, 8, generator=Rng(2).torch())
    synthetic = SyntheticSet(images, torch.arange(6) % 3)
    replies = [
        Reply(k, Approximation(synthetic, 0, claimed, 1.0)) for k, claimed in ((0, 0.01), (1, 0.3))
    ]
    after = method.server(server, method.init(server), replies)
    assert after.radius == 0.3 <= after.moved < 0.3 + 0.1
    assert 1 < after.iterations < method.most_iterations
    assert "radius" not in method.report(after, replies)


def test_public_sizes_serve_as_weights() -> None:
    method = dataclasses.replace(ONE, weighting="records")
    assert (
        toy_experiment(method, privacy={**TOY_PRIVACY, "public_size": [9, 9, 9]}).plan is not None
    )
