import pytest
import torch
from torch import Tensor

from fedstill.rng import Rng
from fedstill.steps import augment as module
from fedstill.steps.augment import CHANGES, Change, draw_augmentation
from fedstill.steps.matching import same


def image(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=Rng(0).torch(), dtype=torch.float64)


@pytest.mark.parametrize("kind", sorted(CHANGES))
@pytest.mark.parametrize("shape", [(2, 1, 8, 8), (2, 3, 9, 6), (1, 1, 1, 1)])
def test_gradients_reach_the_pixels(kind: str, shape: tuple[int, ...]) -> None:
    x = image(*shape).requires_grad_(True)
    for draws in ((0.1, 0.3, 0.9), (0.999999, 0.0, 0.5)):
        changed = Change(kind, draws)(x)
        assert changed.shape == x.shape
        assert torch.autograd.gradcheck(Change(kind, draws), x)


def test_one_draw_changes_every_image_alike() -> None:
    one = image(1, 3, 8, 8)
    both = one.repeat(4, 1, 1, 1)
    for kind in CHANGES:
        changed = Change(kind, (0.2, 0.7, 0.4))
        assert torch.allclose(changed(both), changed(one).repeat(4, 1, 1, 1))


def test_draws_are_named_and_leave_global_randomness_alone() -> None:
    state = torch.get_rng_state()
    first = [draw_augmentation("dsa", Rng(4).torch(), flip=True) for _ in range(2)]
    assert first[0] == first[1]
    assert torch.equal(torch.get_rng_state(), state)
    assert draw_augmentation("none", Rng(4).torch(), flip=True) is same


def test_digits_are_never_mirrored() -> None:
    generator = Rng(0).torch()
    drawn = [draw_augmentation("dsa", generator, flip=False) for _ in range(200)]
    kinds = {change.kind for change in drawn if isinstance(change, Change)}
    assert kinds == set(CHANGES) - {"flip"}
    more = [draw_augmentation("dsa", generator, flip=True) for _ in range(200)]
    assert {c.kind for c in more if isinstance(c, Change)} == set(CHANGES)


def test_crop_is_a_shift_with_zeros_coming_in() -> None:
    x = image(1, 1, 8, 8)
    shifted = module.crop(x, 0.999, 0.0, 0.0)  # one down, one to the left
    assert torch.equal(shifted[..., 1:, :-1], x[..., :-1, 1:])
    assert shifted[..., 0, :].abs().sum() == 0
    assert shifted[..., :, -1].abs().sum() == 0
    assert torch.equal(module.crop(x, 0.5, 0.5, 0.0), x)


def test_cutout_blanks_half_the_side() -> None:
    x = torch.ones(1, 1, 8, 8)
    assert int((module.cutout(x, 0.5, 0.5, 0.0) == 0).sum()) == 16
    assert 0 < int((module.cutout(x, 0.0, 0.0, 0.0) == 0).sum()) < 16  # partly outside


def test_colour_by_hand() -> None:
    x = torch.tensor([[[[0.0, 2.0]]]])
    changed = module.colour(x, 1.0, 0.3, 0.0)  # + 0.5, one channel: no saturation, half contrast
    assert torch.allclose(changed, torch.tensor([[[[1.0, 2.0]]]]))
    grey = module.colour(image(2, 3, 4, 4), 0.5, 0.0, 0.5)
    assert torch.allclose(grey[:, 0], grey[:, 2])


def test_scale_and_rotation_of_nothing_change_nothing() -> None:
    x = image(2, 1, 8, 8)
    middle = (1 - 1 / 1.2) / (1.2 - 1 / 1.2)
    assert torch.allclose(module.scale(x, middle, middle, 0.0), x)
    assert torch.allclose(module.rotate(x, 0.5, 0.0, 0.0), x)
