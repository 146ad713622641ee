"""Distribution matching against the loop over classes that it replaces."""

import pytest
import torch
from torch import Tensor

from fedstill.models import MLP, ConvNet, Model
from fedstill.rng import Rng
from fedstill.scaling import Scaling
from fedstill.steps import matching as module
from fedstill.steps.matching import (
    Matching,
    class_means,
    classes_at_once,
    euclidean,
    pixel_gradient,
)
from fedstill.types import Params, Task

SHAPE, CLASSES = (1, 8, 8), 4


class TinyChunks(ConvNet):
    """Chunks of three images, so that few images make many of them."""

    @property
    def chunk(self) -> int:
        return 3


def task_of(model: Model) -> Task:
    return Task(model, SHAPE, CLASSES, 1, 1, Scaling((), ()))


def draw(*shape: int, name: str = "x", dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=Rng(0).at(name).torch(), dtype=dtype)


def weights_of(model: Model, dtype: torch.dtype = torch.float64) -> Params:
    return {k: v.to(dtype) for k, v in model.init(Rng(1).torch()).items()}


def obvious(
    model: Model, params: Params, real: list[Tensor], images: Tensor, how: Matching
) -> tuple[Tensor, Tensor]:
    """One class after another, everything at once, plain autograd."""
    x = images.clone().requires_grad_(True)
    total = torch.zeros((), dtype=images.dtype)
    for records, synthetic in zip(real, x, strict=True):
        pairs = zip(model.features(params, records), model.features(params, synthetic), strict=True)
        for a, b in list(pairs)[-how.layers :]:
            difference = a.flatten(1).mean(0) - b.flatten(1).mean(0)
            total = total + (difference.square().sum() if how.squared else difference.norm())
    return torch.autograd.grad(total, x)[0], total.detach()


def ours(
    model: Model, params: Params, real: list[Tensor], images: Tensor, how: Matching
) -> tuple[Tensor, Tensor]:
    task = task_of(model)
    x, counts = torch.cat(real), torch.tensor([len(records) for records in real])
    slots = torch.arange(len(real)).repeat_interleave(counts)
    chunks = zip(x.split(model.chunk), slots.split(model.chunk), strict=True)
    means = class_means(task, params, chunks, counts, how)
    return pixel_gradient(task, params, images, means, how)


@pytest.mark.parametrize("squared", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_equals_the_loop_over_classes(layers: int, squared: bool) -> None:
    model = TinyChunks(SHAPE, CLASSES, width=4)
    params = weights_of(model)
    real = [draw(n, *SHAPE, name=f"real{n}") for n in (5, 1, 7)]  # one class has a single record
    images = draw(3, 2, *SHAPE, name="synthetic")
    how = Matching(layers, squared)
    gradient, loss = ours(model, params, real, images, how)
    expected, expected_loss = obvious(model, params, real, images, how)
    assert torch.allclose(loss, expected_loss)
    assert torch.allclose(gradient, expected, atol=1e-12)


def test_pixel_gradient_agrees_with_finite_differences() -> None:
    model = MLP(SHAPE, CLASSES, width=5, activation="gelu")
    params = weights_of(model)
    real = [draw(4, *SHAPE, name="real")]
    images = draw(1, 2, *SHAPE, name="synthetic")
    for how in (Matching(3, True), Matching(3, False)):
        gradient, _ = ours(model, params, real, images, how)
        direction = draw(*images.shape, name="direction")
        step = 1e-6
        up = ours(model, params, real, images + step * direction, how)[1]
        down = ours(model, params, real, images - step * direction, how)[1]
        assert torch.allclose((up - down) / (2 * step), (gradient * direction).sum(), rtol=1e-6)


def test_a_hand_computed_step() -> None:
    # No hidden layer: h(x) = x and z(x) = W x, so the loss is |d|^2 + |W d|^2 with d the
    # difference of the mean images, and every synthetic image gets -2 (d + W'W d) / 2.
    model = MLP((1, 1, 2), 2, depth=0)
    params = {"linear.weight": torch.tensor([[1.0, 2.0], [0.0, 1.0]]), "linear.bias": torch.ones(2)}
    real = [torch.tensor([[[[2.0, 1.0]]], [[[4.0, 1.0]]]])]  # mean (3, 1)
    images = torch.tensor([[[[[1.0, 0.0]]], [[[1.0, 2.0]]]]])  # mean (1, 1): d = (2, 0)
    gradient, loss = ours(model, params, real, images, Matching())
    assert float(loss) == 4.0 + 4.0  # W d = (2, 0)
    assert torch.allclose(gradient[0, :, 0, 0], torch.tensor([[-4.0, -4.0]]).expand(2, 2))


def test_a_plain_norm_has_a_finite_gradient_at_zero() -> None:
    difference = torch.zeros(2, 3, requires_grad=True)
    lengths = euclidean(difference)
    assert lengths.tolist() == [0.0, 0.0]
    assert torch.autograd.grad(lengths.sum(), difference)[0].abs().max() == 0
    model = ConvNet(SHAPE, CLASSES, width=4)
    images = draw(2, 3, *SHAPE)
    gradient, loss = ours(model, weights_of(model), list(images), images, Matching(3, False))
    assert torch.isfinite(gradient).all()
    assert float(loss) < 1e-6


def test_a_synthetic_chunk_holds_whole_classes() -> None:
    task = task_of(TinyChunks(SHAPE, CLASSES, width=4))
    assert classes_at_once(task, 1) == 4
    assert classes_at_once(task, 50) == 1


def test_compiled_chunks_agree_and_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    programs: list[set[tuple[int, ...]]] = []

    def stand_in(function: object, **options: object) -> object:
        assert options == {"fullgraph": True, "dynamic": False}
        shapes: set[tuple[int, ...]] = set()
        programs.append(shapes)

        def call(params: Params, x: Tensor, *rest: object) -> object:
            shapes.add(tuple(x.shape))
            return function(params, x, *rest)  # type: ignore[operator]

        return call

    monkeypatch.setattr(torch, "compile", stand_in)
    monkeypatch.setattr(module, "compiler_found", lambda: True)
    module._compiled.cache_clear()
    model = TinyChunks(SHAPE, CLASSES, width=4)
    params = weights_of(model)
    for numbers in ((5, 1, 7), (2, 2), (4,)):  # other clients: other classes and records
        real = [draw(n, *SHAPE, name=f"real{n}") for n in numbers]
        images = draw(len(numbers), 2, *SHAPE, name="synthetic")
        for squared in (True, False):
            fast = ours(model, params, real, images, Matching(2, squared, compiled=True))
            plain = ours(model, params, real, images, Matching(2, squared))
            assert torch.allclose(fast[0], plain[0], atol=1e-12)
            assert torch.allclose(fast[1], plain[1])
    module._compiled.cache_clear()
    assert len(programs) == 4  # real and synthetic side, squared and not
    assert all(len(shapes) == 1 for shapes in programs)


def test_without_a_compiler_plain_pytorch_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    module.compiler_found.cache_clear()
    model = ConvNet(SHAPE, CLASSES, width=4)
    args = (model, weights_of(model), [draw(3, *SHAPE)], draw(1, 2, *SHAPE, name="s"))
    with pytest.warns(UserWarning, match="no C\\+\\+ compiler"):
        fallback = ours(*args, Matching(compiled=True))
    module.compiler_found.cache_clear()
    assert torch.equal(fallback[0], ours(*args, Matching())[0])
