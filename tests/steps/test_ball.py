import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstill.rng import Rng
from fedstill.steps.arithmetic import norm, subtract
from fedstill.steps.ball import project_ball, sample_ball
from fedstill.types import Params


def weights(size: int = 500) -> Params:
    generator = Rng(0).at("weights").torch()
    return {
        "a": torch.randn(size, generator=generator),
        "b": torch.randn(2, 3, generator=generator),
    }


def distance(a: Params, b: Params) -> float:
    return float(norm(subtract(a, b)))


def test_with_many_weights_a_sample_lies_on_the_sphere() -> None:
    centre = weights()
    sample = sample_ball(centre, 5.0, Rng(1).torch())
    assert abs(distance(sample, centre) - 5.0) < 1e-4


def test_a_short_draw_is_not_stretched() -> None:
    centre = {"w": torch.zeros(2)}
    drawn = torch.randn(2, generator=Rng(3).torch())
    assert torch.equal(sample_ball(centre, 100.0, Rng(3).torch())["w"], drawn)


def test_radius_zero_is_the_centre_itself() -> None:
    centre = weights()
    assert all(
        torch.equal(v, centre[k]) for k, v in sample_ball(centre, 0.0, Rng(0).torch()).items()
    )
    moved = {k: v + 1 for k, v in centre.items()}
    assert all(torch.equal(v, centre[k]) for k, v in project_ball(moved, centre, 0.0).items())


def test_sampling_changes_neither_its_input_nor_global_randomness() -> None:
    centre = weights()
    before = {k: v.clone() for k, v in centre.items()}
    state = torch.get_rng_state()
    sample_ball(centre, 1.0, Rng(0).torch())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in centre.items())


@given(radius=st.floats(0, 50), length=st.floats(0, 100))
def test_a_projection_is_in_the_ball_on_the_same_ray(radius: float, length: float) -> None:
    centre = weights(20)
    step = sample_ball({k: torch.zeros_like(v) for k, v in centre.items()}, 1.0, Rng(5).torch())
    moved = {k: v + length * step[k] for k, v in centre.items()}
    inside = project_ball(moved, centre, radius)
    assert distance(inside, centre) <= radius * (1 + 1e-5) + 1e-5
    if distance(moved, centre) <= radius:
        assert inside is moved
    else:
        assert abs(distance(inside, centre) - radius) < 1e-4
