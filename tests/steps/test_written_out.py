"""Steps by a network's own derivatives against the same steps by autograd."""

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fedstill.models import ConvNet
from fedstill.models.kernels.derivatives import Form
from fedstill.records import Records, Split
from fedstill.rng import Rng
from fedstill.scaling import Scaling
from fedstill.steps import gradient_matching as module
from fedstill.steps.augment import Change
from fedstill.steps.gradient import batch_gradient, full_gradient, tracked
from fedstill.steps.gradient_matching import (
    DC,
    FED_GLOSS,
    GradientDistance,
    gradient_matching_pixels,
)
from fedstill.steps.matching import same
from fedstill.steps.unroll import Batches, backward, sgd_steps, unroll
from fedstill.steps.written_out import written_out
from fedstill.testing import as_vector
from fedstill.types import Params, Task
from tests.models.test_winograd import some_weights

SHAPE, CLASSES, IMAGES = (1, 8, 8), 3, 7
LABELS = torch.arange(IMAGES) % CLASSES


@dataclass(frozen=True)
class Own(ConvNet):
    """With its own derivatives at every size, in chunks of three: the last has one image."""

    def written_out(self, records: int, order: int) -> Form | None:
        form = super().written_out(10_000, order)
        return None if form is None else dataclasses.replace(form, chunk=3)


@dataclass(frozen=True)
class ByAutograd(ConvNet):
    def written_out(self, records: int, order: int) -> Form | None:
        return None


def task_of(kind: type[ConvNet]) -> Task:
    return Task(kind(SHAPE, CLASSES, width=32), SHAPE, CLASSES, 1, 1, Scaling((), ()))


OWN, PLAIN = task_of(Own), task_of(ByAutograd)


def weights() -> Params:
    return some_weights(ConvNet(SHAPE, CLASSES, width=32))


def draw(*shape: int, name: str) -> Tensor:
    return torch.randn(shape, generator=Rng(7).at(name).torch(), dtype=torch.float64)


@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_of_a_batch(weighted: bool) -> None:
    params, x = tracked(weights()), draw(IMAGES, *SHAPE, name="x")
    factors = draw(IMAGES, name="factors").abs() if weighted else None
    found, expected = (batch_gradient(task, params, x, LABELS, factors) for task in (OWN, PLAIN))
    torch.testing.assert_close(found[1], expected[1])
    for one, other in zip(found[0], expected[0], strict=True):
        assert not one.requires_grad
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_gradient_of_all_records_in_parts() -> None:
    many = 60  # parts of 8 chunks, 24
    x, y = draw(many, *SHAPE, name="x").mul(50).byte(), torch.arange(many) % CLASSES
    records = Records(Split(x, y), torch.arange(many), Scaling((0.5,), (0.3,)))
    params = {name: value.float() for name, value in weights().items()}
    found, expected = (full_gradient(task, params, records) for task in (OWN, PLAIN))
    torch.testing.assert_close(found[1], expected[1])
    ours, plain = as_vector(found[0]), as_vector(expected[0])
    assert (ours - plain).norm() < 1e-5 * plain.norm()


@pytest.mark.parametrize("kept", [0, 1, 8])
@pytest.mark.parametrize("how", [DC, FED_GLOSS, GradientDistance(mse_weight=1.0, cosine=False)])
@pytest.mark.parametrize(
    "augment", [same, Change("crop", (0.9, 0.1, 0.0)), Change("colour", (0.7, 0.2, 0.9))]
)
def test_matched_pixels(
    augment: Change, how: GradientDistance, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = {0: 0, 1: 1 / OWN.chunk, 8: 8}[kept]  # none, one chunk of three, all
    monkeypatch.setattr(module, "_KEPT_CHUNKS", chunks)
    params, images = weights(), draw(IMAGES, *SHAPE, name="images")
    target = [draw(*value.shape, name=name) for name, value in params.items()]
    found = gradient_matching_pixels(OWN, params, images, LABELS, target, how, augment)
    monkeypatch.setattr(module, "_KEPT_CHUNKS", 8)
    expected = gradient_matching_pixels(PLAIN, params, images, LABELS, target, how, augment)
    torch.testing.assert_close(found[1], expected[1])
    torch.testing.assert_close(found[0], expected[0], rtol=1e-7, atol=1e-10)


def test_rows_of_zeros_on_both_sides_have_no_gradient() -> None:
    params, images = weights(), draw(IMAGES, *SHAPE, name="images")
    params["linear.weight"][:, :16] = 0.0  # the last block's first filters have gradient zero
    target = [draw(*value.shape, name=name) for name, value in params.items()]
    target[0][:5] = 0.0
    found, expected = (
        gradient_matching_pixels(task, params, images, LABELS, target, FED_GLOSS)
        for task in (OWN, PLAIN)
    )
    torch.testing.assert_close(found[1], expected[1])
    torch.testing.assert_close(found[0], expected[0], rtol=1e-7, atol=1e-10)
    assert found[0].isfinite().all()


@pytest.mark.parametrize("soft", [False, True])
def test_unrolled_steps(soft: bool) -> None:
    params, x = weights(), draw(3, 5, *SHAPE, name="x")
    y = draw(3, 5, CLASSES, name="y").softmax(-1) if soft else torch.arange(15).view(3, 5) % CLASSES
    batches, rates = Batches(x, y), [0.02, 0.01, 0.03]
    paths = [unroll(task, params, batches, rates, stride=2) for task in (OWN, PLAIN)]
    found, expected = (
        backward(task, path, batches, rates, params)
        for task, path in zip((OWN, PLAIN), paths, strict=True)
    )
    ends = [as_vector(path.end) for path in paths]
    torch.testing.assert_close(*ends, rtol=1e-8, atol=1e-9)
    assert torch.equal(as_vector(sgd_steps(OWN, params, batches, rates)), ends[0])
    torch.testing.assert_close(found.x, expected.x, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.y, expected.y, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(
        as_vector(found.start), as_vector(expected.start), rtol=1e-6, atol=1e-9
    )
    assert found.learning_rates == pytest.approx(expected.learning_rates, rel=1e-7)


def test_the_same_bits_every_time() -> None:
    params = {name: value.float() for name, value in weights().items()}
    images = draw(IMAGES, *SHAPE, name="images").float()
    target = [draw(*value.shape, name=name).float() for name, value in params.items()]
    first, again = (
        gradient_matching_pixels(OWN, params, images, LABELS, target, FED_GLOSS) for _ in range(2)
    )
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])


def test_training_in_half_precision_and_mixed_types_are_left_to_autograd() -> None:
    params, x = weights(), draw(IMAGES, *SHAPE, name="x")
    assert written_out(OWN, params, x, 1) is not None
    assert written_out(OWN, params, x.float(), 1) is None
    half = dataclasses.replace(OWN, precision=torch.bfloat16)
    found = batch_gradient(half, tracked(params), x, LABELS, mixed=True)[0]
    plain = batch_gradient(
        dataclasses.replace(PLAIN, precision=torch.bfloat16), tracked(params), x, LABELS, mixed=True
    )[0]
    assert all(map(torch.equal, found, plain))
    assert written_out(PLAIN, params, x, 1) is None
