"""Fixed maps: unit vectors, each of its own record alone; what is refused."""

import pytest
import torch
from torch import Tensor, nn

from fedstill.build import build
from fedstill.data.mapped import mapped
from fedstill.errors import RequestError
from fedstill.features import FEATURES, Backbone, make_features, projected
from fedstill.features.orientation import Orientation
from fedstill.features.scatter import Scatter

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 17, 23)]


def images(number: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(number, *shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FEATURES)
def test_vectors_have_norm_one_and_the_declared_size(name: str, shape: tuple[int, ...]) -> None:
    features = make_features(name, shape)
    vectors = features(images(3, shape))
    assert vectors.shape == (3, features.size)
    assert torch.allclose(vectors.norm(dim=1), torch.ones(3), atol=1e-5)


@pytest.mark.parametrize("name", FEATURES)
def test_a_vector_depends_on_its_own_record_alone(name: str) -> None:
    features, x = make_features(name, (3, 16, 16)), images(5, (3, 16, 16))
    together = features(x)
    changed = features(torch.cat([x[:1], 100 * images(4, (3, 16, 16), seed=1)]))
    assert torch.allclose(together[0], features(x[:1])[0], atol=1e-6)
    assert torch.allclose(together[0], changed[0], atol=1e-6)


@pytest.mark.parametrize("name", FEATURES)
def test_an_input_of_one_value_gives_a_finite_vector(name: str) -> None:
    assert bool(torch.isfinite(make_features(name, (1, 8, 8))(torch.zeros(1, 1, 8, 8))).all())


def test_a_vertical_edge_has_one_orientation_in_the_cells_it_crosses() -> None:
    x = torch.zeros(1, 1, 28, 28)
    x[..., 14:] = 1.0  # brightness changes across columns 13 and 14: cells 3 of 7
    vector = Orientation((1, 28, 28))(x).view(8, 7, 7)
    assert bool((vector[1:] == 0).all())
    assert bool((vector[0, :, 3] > 0).all())
    assert bool((vector[0, :, [0, 1, 2, 4, 5, 6]] == 0).all())
    # All seven cells have the same edge, and the vector has norm 1.
    assert torch.allclose(vector[0, :, 3], torch.full((7,), 7**-0.5))


def test_edges_do_not_depend_on_brightness_and_contrast() -> None:
    x = images(2, (1, 16, 16))
    features = Orientation((1, 16, 16))
    assert torch.allclose(features(x), features(3 * x + 5), atol=1e-5)


def test_wavelets_see_no_constant_and_tell_orientations_apart() -> None:
    features = Scatter((1, 28, 28))
    first = 16  # numbers of order 0
    flat = features(torch.ones(1, 1, 28, 28))[0]
    assert float(flat[first:].abs().max()) < 0.01
    waves = torch.sin(torch.arange(28.0) * 2.0)
    across, down = waves.expand(1, 1, 28, 28), waves[:, None].expand(1, 1, 28, 28)
    angles = [features(x)[0, first : first + 8 * 49].view(8, 49).sum(1) for x in (across, down)]
    assert [int(a.argmax()) for a in angles] == [0, 4]  # 0 and 90 degrees of eight in 180


def test_random_networks_are_drawn_from_their_seed() -> None:
    x = images(2, (1, 8, 8))
    first, again, other = (make_features("random", (1, 8, 8), seed)(x) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, atol=0.1)


def test_a_projection_keeps_angles_roughly() -> None:
    features = make_features("pixels", (1, 28, 28))
    shorter = projected(features, 400)
    x = images(20, (1, 28, 28)) + 2
    assert shorter.size == 400
    before, after = (f(x) @ f(x).T for f in (features, shorter))
    assert float((before - after).abs().max()) < 0.2
    with pytest.raises(RequestError, match=r"model\.projection: 785 is not less"):
        projected(features, 785)


def test_unknown_features_and_inputs_that_are_no_images_are_refused() -> None:
    with pytest.raises(RequestError, match="no features 'scater'; did you mean 'scatter'"):
        make_features("scater", (1, 8, 8))
    for name in ("orientation", "scatter", "wavelets", "random"):
        with pytest.raises(RequestError, match=f"'{name}' needs images of 8x8 pixels"):
            make_features(name, (13,))
    assert make_features("auto", (13,)).size == 14


class Mixing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) - x.flatten(1).mean(0)


class Endless(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) / 0


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (Mixing(), "depends on the other records"),
        (Endless(), "not finite"),
        (nn.Identity(), r"must map N inputs to \[N, size\], not to \(1, 1, 8, 8\)"),
        (nn.Linear(3, 4), r"cannot read inputs of shape \(1, 8, 8\)"),
    ],
    ids=["mixes", "not finite", "no vector", "other inputs"],
)
def test_an_unusable_backbone_is_refused(module: nn.Module, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        Backbone(module, (1, 8, 8))


class Enlarged(nn.Module):
    """The same layers and weights for every side: only ``forward`` knows it."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side
        self.flatten = nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        larger = nn.functional.interpolate(x, size=(self.side, self.side), mode="bilinear")
        pooled: Tensor = self.flatten(nn.functional.adaptive_max_pool2d(larger, 2))
        return pooled


def test_vectors_of_another_forward_are_not_taken_from_the_cache() -> None:
    """After a change in the user's code the weights are the same, and the vectors are not."""
    built = build({"method": "analytic", "data": "digits", "features": "pixels"})
    small, large = (
        mapped(built.dataset, Backbone(Enlarged(side), (1, 8, 8)), torch.device("cpu"), False)
        for side in (8, 12)
    )
    assert not torch.equal(small.test.inputs, large.test.inputs)


def test_a_backbone_keeps_its_weights_and_is_known_by_them() -> None:
    last = nn.Linear(64, 5)
    module = nn.Sequential(nn.Flatten(), last)
    x = images(3, (1, 8, 8))
    backbone = Backbone(module, (1, 8, 8))
    expected = module(x).detach()
    assert torch.allclose(backbone(x), expected / expected.norm(dim=1, keepdim=True))
    name = repr(backbone)
    nn.init.zeros_(last.weight)  # the copy does not follow
    assert repr(backbone) == name
    assert repr(Backbone(module, (1, 8, 8))) != name
