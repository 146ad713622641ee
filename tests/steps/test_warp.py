import math
from typing import get_args

import pytest
import torch
from torch import Tensor

from fedstill.data import SOURCES, kind_of
from fedstill.errors import RequestError
from fedstill.models import MLP
from fedstill.rng import Rng
from fedstill.scaling import Kind, Scaling
from fedstill.steps.warp import (
    AUTOMATIC,
    WARPS,
    ImageAugment,
    Warp,
    augmentations,
    chosen_augment,
)
from fedstill.types import Task

STILL = Warp(degrees=0, scale=0, shear=0, shift=0)


def images(number: int = 4, channels: int = 1, side: int = 8) -> Tensor:
    return torch.rand(number, channels, side, side, generator=Rng(0).torch())


def task(kind: Kind, shape: tuple[int, ...] = (1, 8, 8)) -> Task:
    return Task(MLP(shape, 3), shape, 3, 1, 1, Scaling((), ()), kind=kind)


def test_a_warp_of_nothing_changes_nothing() -> None:
    x = images()
    assert torch.allclose(STILL(x, Rng(0).torch()), x, atol=1e-6)


@pytest.mark.parametrize("name", WARPS)
def test_every_image_has_a_draw_of_its_own_from_the_stream(name: str) -> None:
    one = images(1, 3)
    warped = WARPS[name](one.repeat(5, 1, 1, 1), Rng(3).torch())
    assert warped.shape == (5, 3, 8, 8)
    apart = torch.cdist(warped.flatten(1), warped.flatten(1)) + torch.eye(5)
    assert float(apart.min()) > 1e-3
    assert torch.equal(warped, WARPS[name](one.repeat(5, 1, 1, 1), Rng(3).torch()))


def test_rotation_by_hand() -> None:
    """A full turn of 90 degrees, drawn with certainty, is ``rot90`` one way or the other."""
    x = images(64)
    turned = Warp(degrees=90, scale=0, shear=0, shift=0)._matrices(64, Rng(1).torch())
    angles = torch.atan2(turned[:, 1, 0], turned[:, 0, 0])
    assert float(angles.abs().max()) <= math.pi / 2
    assert float(angles.min()) < -1
    assert float(angles.max()) > 1
    quarter = torch.tensor([[[0.0, -1.0, 0.0], [1.0, 0.0, 0.0]]]).expand(64, 2, 3)
    grid = torch.nn.functional.affine_grid(quarter, list(x.shape), align_corners=False)
    rotated = torch.nn.functional.grid_sample(x, grid, align_corners=False)
    assert torch.allclose(rotated, torch.rot90(x, 1, (2, 3)), atol=1e-5)


def test_amounts_are_bounds() -> None:
    warp = Warp(degrees=10, scale=0.25, shear=0.1, shift=0.05)
    matrices = warp._matrices(5000, Rng(2).torch())
    area = matrices[:, 0, 0] * matrices[:, 1, 1] - matrices[:, 0, 1] * matrices[:, 1, 0]
    assert float(area.max()) <= 1.25**2 + 1e-5
    assert float(area.min()) >= 1.25**-2 - 1e-5
    assert float(matrices[:, :, 2].abs().max()) <= 0.1  # two units per side
    assert float(matrices[:, :, 2].abs().max()) > 0.099
    assert bool((area > 0).all())  # nothing is mirrored


def test_half_of_the_photographs_are_mirrored() -> None:
    mirrored = Warp(degrees=0, scale=0, shear=0, shift=0, flip=True)
    x = images(1).repeat(400, 1, 1, 1)
    changed = mirrored(x, Rng(0).torch())
    kept = (changed - x).abs().amax((1, 2, 3)) < 1e-5
    flipped = (changed - x.flip(-1)).abs().amax((1, 2, 3)) < 1e-5
    assert bool((kept ^ flipped).all())
    assert 150 < int(flipped.sum()) < 250


def test_an_elastic_field_is_smooth_and_as_large_as_declared() -> None:
    warp = Warp(degrees=0, scale=0, shear=0, shift=0, bend=0.05)
    field = warp._displacement(torch.zeros(500, 1, 28, 28), Rng(0).torch())
    corner = field[:, 0, 0]  # a knot: no interpolation
    assert float(corner.std()) == pytest.approx(0.1, rel=0.05)
    assert float((field[:, 1:] - field[:, :-1]).abs().mean()) < 0.03


def test_pixels_from_outside_are_those_of_the_border() -> None:
    flat = torch.full((3, 1, 8, 8), -0.42)
    assert torch.allclose(WARPS["affine+elastic"](flat, Rng(0).torch()), flat)


def test_auto_depends_on_what_is_public_alone() -> None:
    assert kind_of("mnist", (1, 28, 28)) == "writing"
    assert kind_of("digit-five", (3, 32, 32)) == "writing"
    assert kind_of("fashion-mnist", (1, 28, 28)) == "grey"
    assert kind_of("cifar10", (3, 32, 32)) == "photo"
    assert kind_of("digits", (64,)) == "other"  # features of them, as a worker process gets them
    assert kind_of("my-scans", (1, 64, 64)) == "grey"
    assert kind_of("my-table", (13,)) == "other"
    assert kind_of("my-cubes", (7, 5, 5)) == "other"
    assert kind_of("mnist", (392,)) == "other"  # its features
    assert kind_of("digits", (1, 8, 8)) == "tiny"
    assert kind_of("digits", (273,)) == "other"  # vectors of a feature map
    assert kind_of("my-icons", (3, 32, 15)) == "tiny"
    assert kind_of("my-icons", (3, 16, 16)) == "photo"
    assert {source.kind for source in SOURCES.values()} <= {*get_args(Kind), None}
    for kind in get_args(Kind):
        assert chosen_augment("auto", task(kind)) == AUTOMATIC[kind]


@pytest.mark.parametrize("augment", get_args(ImageAugment))
def test_every_choice_changes_images_or_is_none(augment: ImageAugment) -> None:
    x = images(6)
    draw = augmentations(augment, task("grey"), Rng(5).torch(), flip=False)
    changed = [draw()(x) for _ in range(8)]
    same = [torch.equal(c, x) for c in changed]
    assert all(same) if augment == "none" else not all(same)


def test_tables_are_not_warped() -> None:
    table = task("other", (13,))
    assert chosen_augment("auto", table) == "none"
    with pytest.raises(RequestError, match=r"server_augment = 'affine'.*use 'none' or 'auto'"):
        chosen_augment("affine", table)
