"""Gradient matching: the distance, and its pixel gradient against plain double back-propagation."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedstill.models import MLP, ConvNet, Model
from fedstill.rng import Rng
from fedstill.steps import gradient_matching as module
from fedstill.steps.augment import Change
from fedstill.steps.gradient_matching import (
    DC,
    FED_GLOSS,
    Criterion,
    GradientDistance,
    distance_of,
    grad_distance,
    gradient_matching_pixels,
    weight_gradient,
)
from fedstill.steps.matching import same
from fedstill.types import Params
from tests.steps.test_matching import CLASSES, SHAPE, TinyChunks, draw, task_of, weights_of

LABELS = torch.arange(7) % CLASSES


def target_for(params: Params) -> list[Tensor]:
    generator = Rng(9).torch()
    return [torch.randn(v.shape, generator=generator).to(v) for v in params.values()]


def obvious(
    model: Model,
    params: Params,
    images: Tensor,
    target: list[Tensor],
    how: GradientDistance,
    augment: Callable[[Tensor], Tensor] = same,
) -> tuple[Tensor, Tensor]:
    """All images at once, the whole graph kept, differentiated twice."""
    leaves = {k: v.clone().requires_grad_(True) for k, v in params.items()}
    x = images.clone().requires_grad_(True)
    loss = task_of(model).loss(model.apply(leaves, augment(x)), LABELS[: len(x)]).mean()
    gradient = torch.autograd.grad(
        loss, list(leaves.values()), create_graph=True, allow_unused=True, materialize_grads=True
    )
    distance = grad_distance(target, gradient, how)
    return torch.autograd.grad(distance, x)[0], distance.detach()


def test_distance_of_gradients_by_hand() -> None:
    real = [torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([3.0, 4.0])]
    synthetic = [torch.tensor([[0.0, 5.0], [0.0, 1.0]]), torch.tensor([4.0, 3.0])]
    rows = 1.0 + 0.0  # a right angle and the same direction
    vector = 1 - 24 / 25
    square = (1 + 25 + 0 + 1) + (1 + 1)
    assert torch.allclose(grad_distance(real, synthetic), torch.tensor(rows))
    both = GradientDistance(include_vectors=True)
    assert torch.allclose(grad_distance(real, synthetic, both), torch.tensor(rows + vector))
    expected = torch.tensor(rows / 2 + vector + 0.1 * square)
    assert torch.allclose(grad_distance(real, synthetic, FED_GLOSS), expected)


def test_a_convolution_is_read_as_one_row_an_output() -> None:
    a, b = draw(4, 3, 2, 2, name="a"), draw(4, 3, 2, 2, name="b")
    slow = sum(
        1 - torch.dot(x.flatten(), y.flatten()) / x.norm() / y.norm()
        for x, y in zip(a, b, strict=True)
    )
    assert torch.allclose(grad_distance([a], [b]), torch.as_tensor(slow))


@pytest.mark.parametrize("zero", ["real", "synthetic", "both"])
def test_a_zero_row_counts_one_and_has_a_finite_gradient(zero: str) -> None:
    real, synthetic = torch.ones(2, 3), torch.ones(2, 3)
    if zero in ("real", "both"):
        real[0] = 0.0
    if zero in ("synthetic", "both"):
        synthetic[0] = 0.0
    synthetic.requires_grad_(True)
    distance = grad_distance([real], [synthetic])
    assert abs(float(distance.detach()) - 1.0) < 1e-6
    assert torch.isfinite(torch.autograd.grad(distance, synthetic)[0]).all()


@pytest.mark.parametrize("criterion", get_args(Criterion))
def test_the_criterion_says_what_is_added_up(criterion: Criterion) -> None:
    a = [torch.tensor([[1.0, 0.0], [0.0, 2.0]])]
    b = [torch.tensor([[0.0, 5.0], [0.0, 1.0]])]
    how = distance_of(criterion, normalize_rows=True, include_vectors=True, mse_weight=0.1)
    cosine, mse = 1.0 / 2, 0.1 * 27.0
    expected = {
        "cosine": cosine,
        "cosine+mse": cosine + mse,
        "mse": mse,
        "calibrated": cosine,
    }[criterion]
    assert float(grad_distance(a, b, how)) == pytest.approx(expected)


def test_fed_gloss_is_the_default_criterion() -> None:
    settings = {"normalize_rows": True, "include_vectors": True, "mse_weight": 0.1}
    assert distance_of("cosine+mse", **settings) == FED_GLOSS  # type: ignore[arg-type]


@given(
    st.integers(-45, 37),
    st.integers(-45, 37),
    st.booleans(),
    st.integers(0, 10_000),
)
def test_the_distance_is_finite_at_every_scale(
    real: int, synthetic: int, some_zero: bool, seed: int
) -> None:
    generator = Rng(seed).torch()
    a = torch.randn(3, 4, generator=generator) * 10.0**real
    b = torch.randn(3, 4, generator=generator) * 10.0**synthetic
    if some_zero:
        a[0], b[1] = 0.0, 0.0
    b.requires_grad_(True)
    distance = grad_distance([a], [b], GradientDistance(include_vectors=True))
    assert 0 <= float(distance.detach()) <= 6 + 1e-5
    gradient = torch.autograd.grad(distance, b)[0]
    assert torch.isfinite(gradient).all()
    if some_zero:
        assert gradient[:2].abs().max() == 0


def test_the_scale_of_the_rows_does_not_matter_to_the_cosine() -> None:
    a, b = draw(3, 5, name="a"), draw(3, 5, name="b")
    assert torch.allclose(grad_distance([a], [b]), grad_distance([a * 1e12], [b * 1e-12]))


@pytest.mark.parametrize("kept", [0, 1, 8])
@pytest.mark.parametrize("how", [DC, FED_GLOSS, GradientDistance(mse_weight=1.0, cosine=False)])
def test_chunks_are_the_double_gradient(
    how: GradientDistance, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KEPT_CHUNKS", kept)  # the chunks after them are computed twice
    model = TinyChunks(SHAPE, CLASSES, width=4, activation="gelu")
    params, images = weights_of(model), draw(7, *SHAPE)
    target = target_for(params)
    pixels, distance = gradient_matching_pixels(task_of(model), params, images, LABELS, target, how)
    expected, expected_distance = obvious(model, params, images, target, how)
    assert torch.allclose(distance, expected_distance)
    assert torch.allclose(pixels, expected, atol=1e-12)


@pytest.mark.parametrize("how", [DC, FED_GLOSS, GradientDistance(mse_weight=1.0, cosine=False)])
@pytest.mark.parametrize("kind", ["mlp", "convnet"])
def test_second_order_gradient_agrees_with_finite_differences(
    kind: str, how: GradientDistance
) -> None:
    model: Model = MLP(SHAPE, CLASSES, width=5, activation="gelu")
    if kind == "convnet":
        model = TinyChunks(SHAPE, CLASSES, width=3, activation="gelu")
    params, images = weights_of(model), draw(5, *SHAPE)
    target, task = target_for(params), task_of(model)
    rotate = Change("rotate", (0.9, 0.0, 0.0))

    def at(x: Tensor) -> tuple[Tensor, Tensor]:
        return gradient_matching_pixels(task, params, x, LABELS[:5], target, how, rotate)

    direction, step = draw(*images.shape, name="direction"), 1e-6
    difference = (at(images + step * direction)[1] - at(images - step * direction)[1]) / (2 * step)
    assert torch.allclose(difference, (at(images)[0] * direction).sum(), rtol=1e-6)


def test_gradients_flow_through_the_augmentation() -> None:
    model = TinyChunks(SHAPE, CLASSES, width=4)
    params, images = weights_of(model), draw(7, *SHAPE)
    target = target_for(params)
    for change in (Change("crop", (0.9, 0.1, 0.0)), Change("colour", (0.7, 0.2, 0.9))):
        pixels, _ = gradient_matching_pixels(
            task_of(model), params, images, LABELS, target, DC, change
        )
        expected, _ = obvious(model, params, images, target, DC, change)
        assert torch.allclose(pixels, expected, atol=1e-12)


def test_a_batch_that_equals_the_images_is_at_distance_zero() -> None:
    model = ConvNet(SHAPE, CLASSES, width=4)
    params, images = weights_of(model), draw(7, *SHAPE)
    target = weight_gradient(task_of(model), params, images, LABELS)
    how = dataclasses.replace(FED_GLOSS, include_vectors=False)
    _, distance = gradient_matching_pixels(task_of(model), params, images, LABELS, target, how)
    assert float(distance) == pytest.approx(0.0, abs=1e-9)
    assert math.isfinite(float(distance))


def test_a_compiled_real_side_agrees_and_is_compiled_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shapes: list[set[tuple[int, ...]]] = []

    def stand_in(function: Any, **options: object) -> Any:
        assert options == {"fullgraph": True, "dynamic": False}
        seen: set[tuple[int, ...]] = set()
        shapes.append(seen)

        def call(params: Params, x: Tensor, *rest: Tensor) -> Any:
            seen.add(tuple(x.shape))
            return function(params, x, *rest)

        return call

    monkeypatch.setattr(torch, "compile", stand_in)
    monkeypatch.setattr(module, "compiler_found", lambda: True)
    module._compiled.cache_clear()
    model = TinyChunks(SHAPE, CLASSES, width=4)
    params, task = weights_of(model), task_of(model)
    for number in (7, 3, 2):
        images, labels = draw(number, *SHAPE), LABELS[:number]
        fast = weight_gradient(task, params, images, labels, compiled=True)
        plain = weight_gradient(task, params, images, labels)
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(fast, plain, strict=True))
    module._compiled.cache_clear()
    assert shapes == [{(3, *SHAPE)}]


@pytest.mark.parametrize("width", [4, 32])
def test_mixed_precision_leaves_targets_exact(width: int) -> None:
    """It is for training: real and synthetic gradients are compared in single precision."""
    task = task_of(ConvNet(SHAPE, CLASSES, width=width, depth=2))
    half = dataclasses.replace(task, precision=torch.bfloat16)
    params = weights_of(task.model, torch.float32)
    x = draw(7, *SHAPE, dtype=torch.float32)
    target = weight_gradient(half, params, x, LABELS)
    assert all(map(torch.equal, target, weight_gradient(task, params, x, LABELS)))
    pixels, distance = gradient_matching_pixels(half, params, x, LABELS, target)
    exact = gradient_matching_pixels(task, params, x, LABELS, target)
    assert torch.equal(pixels, exact[0])
    assert torch.equal(distance, exact[1])
    assert float(distance) < 1e-4
