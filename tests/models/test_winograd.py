"""Winograd's algorithm for the papers' ConvNet against the plain network."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedstill.models import ConvNet
from fedstill.models.kernels import winograd
from fedstill.rng import Rng
from fedstill.types import Params

WIDTH = 64
SHAPES = [(1, 28, 28), (3, 32, 32), (1, 16, 16)]


def some_weights(model: ConvNet, dtype: torch.dtype = torch.float64) -> Params:
    """With norms that scale and shift, negative scales among them."""
    generator = Rng(3).at("weights").torch()
    params = model.init(generator)
    for name in params:
        if ".norm." in name:
            params[name] = torch.randn(params[name].shape, generator=generator)
    return {name: value.to(dtype) for name, value in params.items()}


def apart(these: Tensor, those: Tensor) -> float:
    return float((these.double() - those).norm() / those.norm())


@pytest.mark.parametrize("height", [4, 8, 12])
@pytest.mark.parametrize("width", [4, 16])
def test_tiles_are_the_convolution(height: int, width: int) -> None:
    generator = Rng(0).at("convolution").torch()
    x = torch.randn(3, 5, height, width, generator=generator, dtype=torch.float64)
    weight = torch.randn(7, 5, 3, 3, generator=generator, dtype=torch.float64)
    padded = F.pad(x, (1, 1, 1, 1)).movedim(1, -1).contiguous()
    tiles = winograd.convolve(padded, winograd.transformed(weight))
    assert tiles.shape == (4, 4, 3, height // 4, width // 4, 7)
    found = tiles.permute(2, 5, 3, 0, 4, 1).reshape(3, 7, height, width)
    torch.testing.assert_close(found, F.conv2d(x, weight, padding=1), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("images", [1, 5])
def test_every_output_is_the_networks(shape: tuple[int, ...], images: int) -> None:
    model = ConvNet(shape, 10, width=WIDTH)
    assert model.fast_inference
    params = some_weights(model)
    x = torch.randn(images, *shape, generator=Rng(1).at("x").torch(), dtype=torch.float64)
    for fast, slow in zip(model.inference(params, x), model.features(params, x), strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("shape", SHAPES[:2])
def test_single_precision_is_exact_enough(shape: tuple[int, ...]) -> None:
    model = ConvNet(shape, 10, width=WIDTH)
    params = some_weights(model, torch.float32)
    x = torch.randn(8, *shape, generator=Rng(1).at("x").torch())
    exact = model.features({k: v.double() for k, v in params.items()}, x.double())
    for fast, right in zip(model.inference(params, x), exact, strict=True):
        assert fast.dtype == torch.float32
        assert apart(fast, right) < 2e-5


def test_an_image_without_contrast_gives_no_nan() -> None:
    model = ConvNet((1, 28, 28), 10, width=WIDTH)
    params = some_weights(model, torch.float32)
    for value in (0.0, 3.0):
        x = torch.full((2, 1, 28, 28), value)
        logits, right = model.inference(params, x)[-1], model.apply(params, x)
        torch.testing.assert_close(logits, right, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "other",
    [
        ConvNet((1, 28, 28), 10, width=32),
        ConvNet((1, 28, 28), 10, width=WIDTH, norm="group"),
        ConvNet((1, 28, 28), 10, width=WIDTH, activation="gelu"),
        ConvNet((1, 28, 28), 10, width=WIDTH, pooling="max"),
        ConvNet((1, 20, 20), 10, width=WIDTH),  # 10x10 after the first block: no whole tiles
        ConvNet((1, 17, 32), 10, width=WIDTH),
    ],
)
def test_other_networks_go_the_plain_way(other: ConvNet) -> None:
    assert not other.fast_inference
    params = other.init(Rng(0).at("weights").torch())
    x = torch.randn(2, *other.shape, generator=Rng(1).at("x").torch())
    for fast, slow in zip(other.inference(params, x), other.features(params, x), strict=True):
        assert torch.equal(fast, slow)
