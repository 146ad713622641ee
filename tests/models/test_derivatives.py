"""The ConvNet's own derivatives against autograd's, in double precision, and their parts."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedstill.models import ConvNet
from fedstill.models.kernels import norm_pool, tiles
from fedstill.models.kernels.derivatives import Derivatives
from fedstill.models.kernels.norm_pool import Affine
from fedstill.rng import Rng
from fedstill.types import Params
from tests.models.test_winograd import apart, some_weights

WIDTH = 32
# The papers' padding, colours, two blocks, sides that differ, one block.
NETWORKS = [
    ConvNet((1, 28, 28), 10, width=WIDTH),
    ConvNet((3, 16, 16), 10, width=WIDTH),
    ConvNet((1, 8, 8), 10, width=WIDTH),
    ConvNet((2, 8, 16), 10, width=WIDTH, depth=2),
    ConvNet((1, 6, 10), 10, width=WIDTH, depth=1),
]


def draw(*shape: int, name: str, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=Rng(5).at(name).torch()).to(dtype)


def direction_of(params: Params) -> Params:
    return {name: draw(*value.shape, name=name).to(value) for name, value in params.items()}


def own(model: ConvNet, params: Params) -> Derivatives:
    form = model.written_out(100, 2)
    assert form is not None
    return Derivatives(params, form)


def by_hand(
    model: ConvNet, params: Params, x: Tensor, y: Tensor, v: Params
) -> tuple[Tensor, Params, Tensor, Tensor, Params]:
    """Logits; gradient by the weights; along v: of the logits, and of the gradients by the pixels
    and by the weights."""
    passes = own(model, params)
    trace = passes.forward(x)
    logits = trace.logits.clone().requires_grad_(True)
    by_logits = torch.autograd.grad(F.cross_entropy(logits, y), logits, create_graph=True)[0]
    first, second = passes.sums(), passes.sums()
    back = passes.backward(trace, by_logits.detach(), first)
    along = passes.direction(v)
    dot = passes.dot_forward(trace, along)
    dot_by_logits = torch.autograd.grad(by_logits, logits, dot.logits)[0]
    pixels = passes.dot_backward(trace, back, dot, along, dot_by_logits, second)
    return trace.logits, passes.result(first), dot.logits, pixels, passes.result(second)


def by_autograd(
    model: ConvNet, params: Params, x: Tensor, y: Tensor, v: Params
) -> tuple[Tensor, Params, Tensor, Tensor, Params]:
    leaves = {name: value.clone().requires_grad_(True) for name, value in params.items()}
    x = x.clone().requires_grad_(True)
    logits = model.apply(leaves, x)
    gradient = torch.autograd.grad(
        F.cross_entropy(logits, y),
        list(leaves.values()),
        create_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    along = torch.stack([(g * v[name]).sum() for g, name in zip(gradient, v, strict=True)]).sum()
    pixels, *weights = torch.autograd.grad(
        along, [x, *leaves.values()], allow_unused=True, materialize_grads=True
    )
    dot = torch.func.jvp(lambda w: model.apply(w, x.detach()), (params,), (v,))[1]
    first = {name: g.detach() for name, g in zip(params, gradient, strict=True)}
    return logits.detach(), first, dot, pixels, dict(zip(params, weights, strict=True))


@pytest.mark.parametrize("model", NETWORKS, ids=lambda model: str(model.shape))
@pytest.mark.parametrize("images", [1, 5])
def test_all_derivatives_are_autograds(model: ConvNet, images: int) -> None:
    params = some_weights(model)
    x, y = draw(images, *model.shape, name="x"), torch.arange(images)
    v = direction_of(params)
    found, expected = (way(model, params, x, y, v) for way in (by_hand, by_autograd))
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)
        else:
            assert isinstance(one, dict)
            assert isinstance(other, dict)
            assert list(one) == list(other)
            for name in one:
                torch.testing.assert_close(one[name], other[name], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("scale", [0.0, 1e-8, 1e4])
def test_a_scale_of_any_size_and_a_constant_image_are_exact(scale: float) -> None:
    """Nothing is divided by a norm's scale or by a variance without its epsilon."""
    model = NETWORKS[1]
    params = some_weights(model)
    params["block1.norm.weight"] = params["block1.norm.weight"] * scale
    x, y, v = draw(4, *model.shape, name="x"), torch.arange(4), direction_of(params)
    x[1], x[2, 1] = 0.7, 0.0  # the first has no variance inside its border
    found, expected = (way(model, params, x, y, v) for way in (by_hand, by_autograd))
    for one, other in ((found[1], expected[1]), (found[4], expected[4])):
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(found[3], expected[3], rtol=1e-7, atol=1e-8)


def test_second_derivatives_are_differences_of_the_first() -> None:
    model = NETWORKS[2]
    params = some_weights(model)
    x, y, v = draw(3, *model.shape, name="x"), torch.arange(3), direction_of(params)
    step = 1e-6

    def gradient(sign: int) -> Params:
        moved = {name: value + sign * step * v[name] for name, value in params.items()}
        return by_hand(model, moved, x, y, v)[1]

    more, less, found = gradient(1), gradient(-1), by_hand(model, params, x, y, v)[4]
    for name in params:
        difference = (more[name] - less[name]) / (2 * step)
        torch.testing.assert_close(found[name], difference, rtol=1e-5, atol=1e-6)


def test_single_precision_is_exact_enough() -> None:
    model = ConvNet((1, 28, 28), 10, width=128)
    params = some_weights(model, torch.float32)
    x, y = draw(6, *model.shape, name="x", dtype=torch.float32), torch.arange(6)
    v = direction_of(params)
    exact = by_autograd(
        model,
        {name: value.double() for name, value in params.items()},
        x.double(),
        y,
        {name: value.double() for name, value in v.items()},
    )
    found = by_hand(model, params, x, y, v)
    assert apart(found[0], exact[0]) < 4e-6
    assert apart(found[3], exact[3]) < 1e-5
    for one, other in ((found[1], exact[1]), (found[4], exact[4])):
        for name in one:
            if "conv.bias" not in name:  # zero
                assert apart(one[name], other[name]) < 3e-5, name


def in_tiles(x: Tensor) -> Tensor:
    """[N, C, H, W] as tiles of 4x4 outputs."""
    rows: Tensor = x.movedim(1, -1).unflatten(2, (-1, 4)).unflatten(1, (-1, 4))
    return rows.permute(2, 4, 0, 1, 3, 5).reshape(16, -1, x.shape[1])


@pytest.mark.parametrize("sides", [(4, 4), (8, 12), (16, 4)])
def test_tiles_are_the_convolution_and_its_gradients(sides: tuple[int, int]) -> None:
    x = draw(3, 5, *sides, name="x").requires_grad_(True)
    weight = draw(7, 5, 3, 3, name="weight").requires_grad_(True)
    out = F.conv2d(x, weight, padding=1)
    gradient = draw(*out.shape, name="gradient")
    by_x, by_weight = torch.autograd.grad(out, [x, weight], gradient)
    with torch.no_grad():
        spread = tiles.spread(tiles.padded(x.movedim(1, -1)))
        found = tiles.collect(torch.bmm(spread, tiles.enter(weight)))
        back = tiles.scatter(in_tiles(gradient))
        data = tiles.unspread(torch.bmm(back, tiles.enter(weight).mT), 3, sides)
        weights = tiles.leave(torch.bmm(spread.mT, back))
    torch.testing.assert_close(found, in_tiles(out.detach()), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(data, by_x.movedim(1, -1), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(weights, by_weight, rtol=1e-10, atol=1e-10)


def plain_block(z: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """On images [N, C, 4, 4]: one tile each."""
    return F.avg_pool2d(F.relu(F.group_norm(z, z.shape[1], scale, shift)), 2)


def test_norm_and_pooling_are_the_layers() -> None:
    z, norm = draw(3, 6, 4, 4, name="z"), Affine(draw(6, name="a"), draw(6, name="b"))
    dot_z, along = draw(3, 6, 4, 4, name="v"), Affine(draw(6, name="va"), draw(6, name="vb"))
    gradient, dot_gradient = draw(3, 6, 2, 2, name="g"), draw(3, 6, 2, 2, name="vg")

    def layers(z: Tensor, scale: Tensor, shift: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        found = torch.func.vjp(plain_block, z, scale, shift)
        return found[0], *found[1](g)

    primals = (z, norm.scale, norm.shift, gradient)
    both = torch.func.jvp(layers, primals, (dot_z, along.scale, along.shift, dot_gradient))
    expected, dots = both[0], both[1]

    def as_tiles(x: Tensor) -> Tensor:  # [4 x 4, N, 1, C]
        return x.permute(2, 3, 0, 1).reshape(16, 3, 1, 6)

    def as_pooled(x: Tensor) -> Tensor:
        return x.permute(2, 3, 0, 1).unsqueeze(3)

    out, kept = norm_pool.forward(as_tiles(z).clone(), norm)
    dz, by_norm, back = norm_pool.backward(kept, as_pooled(gradient))
    dot_out, moved = norm_pool.dot_forward(kept, as_tiles(dot_z).clone(), along)
    dot_dz, dot_by_norm = norm_pool.dot_backward(kept, back, moved, as_pooled(dot_gradient))
    found = (out, dz, by_norm.scale, by_norm.shift)
    dot_found = (dot_out, dot_dz, dot_by_norm.scale, dot_by_norm.shift)
    for those, these in ((expected, found), (dots, dot_found)):
        shaped = (as_pooled(those[0]), as_tiles(those[1]), those[2], those[3])
        for one, other in zip(these, shaped, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_who_has_derivatives_of_its_own() -> None:
    papers = ConvNet((1, 28, 28), 10, width=128)
    assert papers.written_out(256, 1) is not None
    assert papers.written_out(0, 1) is None
    assert papers.written_out(1, 2) is None  # autograd is faster
    assert ConvNet((1, 28, 28), 10, width=8).written_out(256, 2) is None
    for other in (
        ConvNet((1, 28, 28), 10, norm="group"),
        ConvNet((1, 28, 28), 10, activation="gelu"),
        ConvNet((1, 28, 28), 10, pooling="max"),
        ConvNet((1, 20, 20), 10),  # the second convolution's input is 10 x 10: no whole tiles
    ):
        assert other.written_out(256, 2) is None
    large = ConvNet((3, 128, 128), 10).written_out(256, 2)
    assert large is not None
    assert large.chunk == 2  # as many pixels as 32 images of 32x32
