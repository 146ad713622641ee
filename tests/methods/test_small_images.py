"""``shrink``: sets of small images, for every method that has it."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import avg_pool2d, interpolate

import fedstill
from fedstill.errors import RequestError
from fedstill.methods.feddm import FedDM
from fedstill.methods.feddualmatch import FedDualMatch
from fedstill.methods.real import Real
from fedstill.methods.shared.messages import Weights
from fedstill.rng import Rng
from fedstill.runs.sets import load_set
from fedstill.testing import bits, toy_run
from fedstill.types import AnyMethod, Reply, ServerContext
from tests.methods.test_feddm import digits

FEDDM = FedDM(images_per_class=2, iterations=2, server_epochs=2)
DUAL = FedDualMatch(
    images_per_class=2, iterations=2, gradient_rounds=1, gradient_steps=1, server_iterations=2
)
METHODS: list[AnyMethod] = [Real(images_per_class=2, server_epochs=2), FEDDM, DUAL]


def half(image: torch.Tensor) -> torch.Tensor:
    return interpolate(image, scale_factor=2, mode="bilinear", align_corners=False)


def test_real_sends_means_of_squares_of_the_same_records() -> None:
    ctx = digits(*[0, 1] * 5)
    down = Weights(ctx.task.model.init(Rng(1).torch()))
    method = Real(images_per_class=3)
    full, _ = method.client(ctx, down, None)
    small, _ = dataclasses.replace(method, shrink=2).client(ctx, down, None)
    assert small.synthetic.images.shape == (6, 1, 4, 4)
    assert torch.equal(small.synthetic.images, avg_pool2d(full.synthetic.images, 2))
    assert torch.equal(small.synthetic.labels, full.synthetic.labels)


def test_the_server_trains_on_enlarged_images() -> None:
    ctx = digits(*[0, 1] * 5)
    server = ServerContext(ctx.task, 1, Rng(0))
    method = Real(images_per_class=3, server_steps=3, shrink=2)
    plain = dataclasses.replace(method, shrink=1)
    state = method.init(server)
    small, _ = method.client(ctx, method.broadcast(server, state), None)
    images = half(small.synthetic.images)
    full = dataclasses.replace(small, synthetic=dataclasses.replace(small.synthetic, images=images))
    ours, by_hand = [Reply(0, small)], [Reply(0, full)]
    assert bits(method.server(server, state, ours)) == bits(plain.server(server, state, by_hand))
    assert torch.equal(method.synthetic(state, ours)[0].images, images)


def test_one_matching_step_moves_the_small_pixels_along_the_gradient_at_full_size() -> None:
    ctx = digits(0, 0, 0, 2, 2, 2, 2)
    down = Weights(ctx.task.model.init(Rng(1).torch()))
    method = FedDM(images_per_class=2, iterations=1, radius=0.0, pixel_learning_rate=0.7, shrink=2)
    before = dataclasses.replace(method, iterations=0).client(ctx, down, None)[0].synthetic
    after = method.client(ctx, down, None)[0]
    x, y = ctx.records.all()
    pixels = before.images.clone().requires_grad_(True)
    loss = torch.zeros(())
    for label in (0, 2):
        wanted = ctx.task.model.features(down.params, x[y == label])[-2:]
        got = ctx.task.model.features(down.params, half(pixels[before.labels == label]))[-2:]
        for a, b in zip(wanted, got, strict=True):
            loss = loss + (a.flatten(1).mean(0) - b.flatten(1).mean(0)).square().sum()
    expected = pixels - 0.7 * torch.autograd.grad(loss, pixels)[0]
    assert after.synthetic.images.shape == (4, 1, 4, 4)
    assert torch.allclose(after.synthetic.images, expected, atol=1e-5)


def test_rounding_comes_before_enlarging() -> None:
    """What is matched is what the server will train on: the levels that arrive, enlarged."""
    ctx = digits(0, 0, 0, 2, 2, 2, 2)
    ctx = dataclasses.replace(ctx, task=dataclasses.replace(ctx.task, sent_bits=1))
    down = Weights(ctx.task.model.init(Rng(1).torch()))
    method = FedDM(images_per_class=1, iterations=1, radius=0.0, match_as_sent=True, shrink=2)
    start = dataclasses.replace(method, iterations=0).client(ctx, down, None)[0].synthetic.images
    after = method.client(ctx, down, None)[0]
    x, y = ctx.records.all()
    scaling = ctx.task.scaling
    seen = scaling((scaling.undo(start) >= 0.5).float()).requires_grad_(True)
    loss = torch.zeros(())
    for slot, label in enumerate((0, 2)):
        wanted = ctx.task.model.features(down.params, x[y == label])[-2:]
        got = ctx.task.model.features(down.params, half(seen[slot : slot + 1]))[-2:]
        for a, b in zip(wanted, got, strict=True):
            loss = loss + (a.flatten(1).mean(0) - b.flatten(1).mean(0)).square().sum()
    expected = start - torch.autograd.grad(loss, seen)[0]
    assert torch.allclose(after.synthetic.images, expected, atol=1e-5)


def test_noise_is_drawn_at_the_small_size() -> None:
    ctx = digits(0, 1)
    down = Weights(ctx.task.model.init(Rng(1).torch()))
    method = FedDM(images_per_class=200, iterations=0, initial="noise", shrink=2)
    images = method.client(ctx, down, None)[0].synthetic.images
    assert images.shape == (400, 1, 4, 4)
    assert float(images.std()) == pytest.approx(1.0, abs=0.05)  # not averaged


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_a_quarter_of_the_pixels_is_sent_and_full_images_are_stored(
    method: Any, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        full = toy_run(method, tmp_path / "full", rounds=2, codec="bits8")
        small = toy_run(
            dataclasses.replace(method, shrink=2), tmp_path / "small", rounds=2, codec="bits8"
        )
    stored = load_set(tmp_path / "small" / "synthetic" / "round-0002.safetensors")
    pixels = len(stored) * stored.images[0].numel()
    assert stored.images.shape[1:] == full.built.task.shape
    saved = full.history[1].up_bytes - small.history[1].up_bytes
    assert saved == pytest.approx(pixels * 3 // 4, abs=60)  # but for lengths in the headers


def test_a_factor_that_does_not_divide_the_sides_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"method\.shrink = 3: .*\(1, 8, 8\)"):
        fedstill.run("real", out=tmp_path / "run", set={"method.shrink": 3})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("shrink", [1, 2])
def test_feddm_starts_from_the_records_that_real_would_choose(shrink: int) -> None:
    ctx = digits(*[0, 1] * 8)
    down = Weights(ctx.task.model.init(Rng(1).torch()))
    real, _ = Real(images_per_class=3, choose="centres", shrink=shrink).client(ctx, down, None)
    method = dataclasses.replace(FEDDM, images_per_class=3, initial="centres", shrink=shrink)
    start, _ = dataclasses.replace(method, iterations=0).client(ctx, down, None)
    assert torch.equal(start.synthetic.images, real.synthetic.images)
    moved, _ = method.client(ctx, down, None)
    assert not torch.equal(moved.synthetic.images, real.synthetic.images)


def test_chosen_records_are_refused_with_privacy() -> None:
    with pytest.raises(RequestError, match="initial"):
        fedstill.run("feddm", epsilon=3, set={"method.initial": "centres"}, rounds=1)
