import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstill.errors import RequestError
from fedstill.models import MLP, MODELS, ConvNet, Model, ResNet18
from fedstill.models.layers import average_pool
from fedstill.rng import Rng

INPUTS = [(1, 28, 28), (3, 32, 32), (1, 8, 8)]
IMAGES = [name for name in MODELS if name not in ("gru", "transformer")]


def generator() -> torch.Generator:
    return Rng(0).at("model").torch()


@pytest.mark.parametrize(
    ("shape", "classes", "size"),
    [((1, 28, 28), 10, 317_706), ((3, 32, 32), 10, 320_010), ((3, 32, 32), 100, 504_420)],
)
def test_published_parameter_counts(shape: tuple[int, ...], classes: int, size: int) -> None:
    assert ConvNet(shape, classes).size == size
    assert sum(v.numel() for v in ConvNet(shape, classes).init(generator()).values()) == size


def test_resnet_has_its_usual_size() -> None:
    assert ResNet18((3, 32, 32), 10).size == 11_173_962


@pytest.mark.parametrize("shape", INPUTS)
@pytest.mark.parametrize("name", IMAGES)
def test_features_end_in_the_logits(name: str, shape: tuple[int, ...]) -> None:
    entry = MODELS[name]
    model: Model = entry.cls(shape=shape, classes=7, **{**entry.defaults, "width": 8})
    params = model.init(generator())
    x = torch.randn(3, *shape, generator=generator())
    *_, hidden, logits = model.features(params, x)
    assert logits.shape == (3, 7)
    assert torch.equal(logits, model.apply(params, x))
    last = F.linear(hidden.flatten(1), params["linear.weight"], params["linear.bias"])
    assert torch.allclose(last, logits)
    assert {k: tuple(v.shape) for k, v in params.items()} == model.shapes
    assert model.chunk >= 1


@pytest.mark.parametrize("name", IMAGES)
def test_initial_weights_come_from_the_generator_alone(name: str) -> None:
    model: Model = MODELS[name].cls(shape=(1, 8, 8), classes=3, width=4)
    one, two = model.init(Rng(1).torch()), model.init(Rng(1).torch())
    other = model.init(Rng(2).torch())
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert not torch.equal(one["linear.weight"], other["linear.weight"])


class ReferenceConvNet(nn.Module):
    """The papers' network in plain layers, conv bias and library pooling included."""

    def __init__(self, model: ConvNet) -> None:
        super().__init__()
        channels = model.shape[0]
        layers: list[nn.Module] = []
        for block in range(model.blocks):
            padding = 3 if block == 0 and model.shape[1] == 28 else 1
            layers += [
                nn.Conv2d(channels, model.width, 3, padding=padding),
                nn.GroupNorm(model.width, model.width),
                nn.ReLU(),
                nn.AvgPool2d(2),
            ]
            channels = model.width
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(model.classes))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x)
        return result


@pytest.mark.parametrize("shape", INPUTS)
def test_convnet_is_the_papers_network(shape: tuple[int, ...]) -> None:
    model = ConvNet(shape, 10, width=6)
    params = model.init(generator())
    reference = ReferenceConvNet(model)
    x = torch.randn(4, *shape, generator=generator())
    reference(x)
    with torch.no_grad():
        for mine, theirs in zip(params.values(), reference.parameters(), strict=True):
            theirs.copy_(mine)
    assert torch.allclose(model.apply(params, x), reference(x), atol=1e-5)


def test_a_bias_before_an_instance_norm_makes_no_difference_but_other_norms_see_it() -> None:
    for norm, differs in (("instance", False), ("none", True), ("group", True)):
        model = ConvNet((1, 8, 8), 3, width=4, norm=norm)  # type: ignore[arg-type]
        params = model.init(generator())
        x = torch.randn(2, 1, 8, 8, generator=generator())
        shifted = {**params, "block0.conv.bias": params["block0.conv.bias"] + torch.arange(4.0)}
        assert torch.allclose(model.apply(params, x), model.apply(shifted, x)) != differs


@pytest.mark.parametrize("side", [4, 5, 8, 9])
def test_average_pool_is_average_pooling(side: int) -> None:
    x = torch.randn(2, 3, side, side, generator=generator())
    assert torch.allclose(average_pool(x), F.avg_pool2d(x, 2))


@pytest.mark.parametrize(
    ("shape", "blocks"),
    [
        ((1, 28, 28), 3),
        ((1, 8, 8), 2),
        ((1, 2, 2), 1),
        ((3, 64, 64), 3),
        ((3, 96, 96), 4),
        ((3, 128, 128), 4),
        ((3, 224, 224), 5),
        ((3, 2000, 2000), 6),
    ],
)
def test_depth_follows_the_image(shape: tuple[int, ...], blocks: int) -> None:
    assert ConvNet(shape, 10).blocks == blocks


def test_models_refuse_what_they_cannot_be() -> None:
    with pytest.raises(RequestError, match=r"model\.depth: 4 blocks halve a 8x8 image to nothing"):
        ConvNet((1, 8, 8), 10, depth=4)
    with pytest.raises(RequestError, match="needs images"):
        ConvNet((20,), 10)
    with pytest.raises(RequestError, match="needs images"):
        ResNet18((20,), 10)
    assert MLP((20,), 10, depth=0).size == 210


class OwnNetwork(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3)
        self.norm = norm
        self.last = nn.Linear(4 * 36, 5)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.norm(self.first(x)))
        result: Tensor = self.last(hidden.flatten(1)) * self.scale
        return result


def test_from_module_is_the_module() -> None:
    module = OwnNetwork(nn.GroupNorm(2, 4))
    model = Model.from_module(module)
    x = torch.randn(3, 1, 8, 8, generator=generator())
    weights = {k: v.detach() for k, v in module.named_parameters()}
    assert torch.equal(model.apply(weights, x), module(x))
    hidden, logits = model.features(weights, x)
    assert hidden.shape == (3, 4 * 36)
    assert torch.equal(logits, module(x))
    named = Model.from_module(module, layers=["first", "norm"]).features(weights, x)
    assert [tuple(f.shape) for f in named] == [(3, 4, 6, 6), (3, 4, 6, 6), (3, 5)]


def test_from_module_initialises_from_the_stream_and_leaves_global_state_alone() -> None:
    module = OwnNetwork(nn.GroupNorm(2, 4))
    before = torch.get_rng_state()
    model = Model.from_module(module, weights="new")
    one, two, other = (model.init(Rng(seed).torch()) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert not torch.equal(one["first.weight"], other["first.weight"])
    assert one["scale"] == 2.0
    assert not torch.equal(one["first.weight"], module.first.weight)


def test_frozen_parameters_are_constants() -> None:
    module = OwnNetwork(nn.GroupNorm(2, 4))
    module.first.weight.requires_grad_(False)
    model = Model.from_module(module)
    weights = model.init(Rng(1).torch())
    assert "first.weight" not in weights
    assert "first.weight" not in model.shapes
    x = torch.randn(2, 1, 8, 8, generator=generator())
    before = model.apply(weights, x)
    model.init(Rng(2).torch())  # another initialisation changes nothing that was given
    assert torch.equal(model.apply(weights, x), before)
    given = {**{k: v.detach() for k, v in module.named_parameters()}, **weights}
    assert torch.equal(before, torch.func.functional_call(module, given, (x,)))


def test_given_weights_are_kept_unless_new_ones_are_requested() -> None:
    module = OwnNetwork(nn.GroupNorm(2, 4))
    model, other = Model.from_module(module), Model.from_module(module, weights="new")
    kept = model.init(Rng(1).torch())
    assert all(torch.equal(kept[k], v) for k, v in module.named_parameters())
    assert model.start_note is not None
    assert other.start_note is None
    # Where a method wants a newly initialised network, a pretrained one is drawn anew all the same.
    one, two = model.newly_initialised(Rng(1).torch()), other.init(Rng(1).torch())
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert not torch.equal(one["first.weight"], kept["first.weight"])


def test_constants_are_part_of_the_description() -> None:
    module, other = OwnNetwork(nn.GroupNorm(2, 4)), OwnNetwork(nn.GroupNorm(2, 4))
    trained = [Model.from_module(m).description for m in (module, other)]
    assert trained[0] == trained[1]  # weights are sent
    for frozen in (module, other):
        frozen.first.weight.requires_grad_(False)
    constant = [Model.from_module(m).description for m in (module, other)]
    assert constant[0] != constant[1]  # constants are not: every process must have the same


def test_from_module_refuses_what_would_leak_or_cannot_be_matched() -> None:
    with pytest.raises(RequestError, match="'norm' is a batch norm"):
        Model.from_module(OwnNetwork(nn.BatchNorm2d(4)))
    with pytest.raises(RequestError, match="no submodule 'nope'; there are: first, norm, last"):
        Model.from_module(OwnNetwork(nn.Identity()), layers=["nope"])
    with pytest.raises(RequestError, match=r"no nn\.Linear"):
        Model.from_module(nn.Conv2d(1, 1, 3))
