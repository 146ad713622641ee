from types import ModuleType
from xml.etree import ElementTree

import pytest
import torch

from tests.examples.loading import load_example


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return load_example("surrogate_1d")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_inside_the_ball_the_surrogate_is_far_closer_than_the_tangent(
    module: ModuleType, seed: int
) -> None:
    surrogate, tangent = module.example(seed=seed).errors()
    assert surrogate < 0.05 * tangent


def test_the_points_are_the_paper_s(module: ModuleType) -> None:
    shown = module.example(iterations=0)
    assert len(shown.x) == 100
    assert shown.synthetic.numel() == 20
    flipped = (shown.y.bool() != (shown.x >= 0)).float().mean()
    assert 0 < flipped < 0.25
    at_zero = torch.zeros(1)
    assert torch.allclose(shown.loss(at_zero), torch.tensor(2.0).log())
    step = torch.tensor([1e-2])
    gradient = (shown.loss(step) - shown.loss(-step)) / (2 * step)
    assert torch.allclose(shown.tangent(step) - shown.tangent(at_zero), gradient * step, rtol=1e-2)


def test_the_figure_is_an_svg_image(module: ModuleType) -> None:
    root = ElementTree.fromstring(module.figure(module.example(iterations=5)))
    assert root.tag.endswith("svg")
