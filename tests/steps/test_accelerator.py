"""What would keep an accelerator waiting: values read in loops, tensors on the wrong device.

There is none here. The meta device takes its place: it refuses to mix with another device and to
give out a value.
"""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedstill.models import ConvNet
from fedstill.records import Records, Split, copied
from fedstill.rng import Rng
from fedstill.scaling import Scaling
from fedstill.steps import gradient_matching, matching
from fedstill.steps.classes import ByClass
from fedstill.steps.condense import Condensation, condense
from fedstill.steps.distil import PixelSteps, match_distribution
from fedstill.steps.fit import fit
from fedstill.steps.gradient_matching import DC, weight_gradient
from fedstill.steps.local_sgd import local_sgd
from fedstill.steps.matching import Matching, class_means, pixel_gradient
from fedstill.steps.scores import score
from fedstill.steps.sketching import Distilling, Networks, distil_images
from fedstill.steps.training import Training
from fedstill.types import ClientContext, Params, Task

META = torch.device("meta")
MODEL = ConvNet((1, 8, 8), 3, width=4)
SCALING = Scaling((0.5,), (0.5,))
TRAINING = Training(0.1, 0.9, batch_size=2, epochs=1)
PIXELS = PixelSteps("sgd", 1.0, 0.5, real_batch=4)


def task(device: torch.device) -> Task:
    return Task(MODEL, MODEL.shape, MODEL.classes, 1, 1, SCALING, device)


def weights(device: torch.device) -> Params:
    return {name: value.to(device) for name, value in MODEL.init(Rng(0).torch()).items()}


def context(device: torch.device) -> ClientContext:
    split = Split(torch.zeros(12, 1, 8, 8, dtype=torch.uint8), torch.arange(12) % 3)
    records = Records(split, torch.arange(12), SCALING, device)
    return ClientContext(task(device), 1, 0, Rng(0), data=records)


def images(device: torch.device) -> Tensor:
    return torch.randn(3, 2, 1, 8, 8, generator=Rng(1).torch()).to(device)


def matching_step(device: torch.device) -> list[Tensor]:
    x, slots = images(device).flatten(0, 1), torch.arange(6, device=device) % 3
    chunks = [(x, slots)]
    means = class_means(task(device), weights(device), chunks, torch.full((3,), 2), Matching())
    return list(pixel_gradient(task(device), weights(device), images(device), means, Matching()))


def server_training(device: torch.device) -> list[Tensor]:
    x, y = images(device).flatten(0, 1), torch.arange(6, device=device) % 3
    return list(fit(task(device), weights(device), x, y, Rng(0), TRAINING).values())


def augmented_training(device: torch.device) -> list[Tensor]:
    how = Training(0.1, 0.9, batch_size=2, epochs=1, augment="dsa")
    x, y = images(device).flatten(0, 1), torch.arange(6, device=device) % 3
    return list(fit(task(device), weights(device), x, y, Rng(0), how).values())


def local_training(device: torch.device) -> list[Tensor]:
    return list(local_sgd(context(device), weights(device), TRAINING).values())


@pytest.mark.parametrize(
    "step", [matching_step, server_training, augmented_training, local_training]
)
def test_everything_stays_on_the_device(step: Callable[[torch.device], list[Tensor]]) -> None:
    assert {tensor.device for tensor in step(META)} == {META}


def test_chunks_are_for_processors() -> None:
    """In the cache of a processor; on an accelerator as many as its memory surely holds."""
    small, large = task(META), dataclasses.replace(task(META), shape=(3, 224, 224))
    assert small.chunk == 512
    assert dataclasses.replace(small, device=torch.device("cpu")).chunk == MODEL.chunk < 512
    assert large.chunk == 8 * 64**3 // 224**2 == 41


def test_batches_are_copied_from_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a fake device: there is no CUDA here."""
    calls: list[tuple[str, object]] = []

    def pin_memory(batch: Tensor) -> Tensor:
        calls.append(("pinned", len(batch)))
        return batch

    def to(batch: Tensor, device: torch.device, non_blocking: bool = False) -> Tensor:
        calls.append((device.type, non_blocking))
        return batch

    monkeypatch.setattr(Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(Tensor, "to", to)
    batch = torch.zeros(5)
    assert copied(batch, torch.device("cuda")) is batch
    assert copied(batch, torch.device("mps")) is batch
    assert calls == [("pinned", 5), ("cuda", True), ("mps", False)]


def progressed(loop: Callable[[Callable[[int, int], None]], object]) -> list[int]:
    """The steps that a loop makes before it first reads a value, which the device refuses."""
    made: list[int] = []
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        loop(lambda step, _steps: made.append(step))
    return made


def distribution_matching(progress: Callable[[int, int], None]) -> object:
    ctx = dataclasses.replace(context(META), progress=progress)
    by_class, plan = ByClass(ctx.records), [Matching()] * 4
    return match_distribution(ctx, by_class, weights(META), 1.0, images(META), plan, PIXELS)


def sketching(progress: Callable[[int, int], None]) -> object:
    networks = Networks(task(META), (weights(META), weights(META)), 2)
    targets = torch.zeros(3, 2, networks.size, device=META)
    how = Distilling(4, 0.1)
    return distil_images(networks, targets, images(META), how, Rng(0), progress)


def condensing(progress: Callable[[int, int], None]) -> object:
    ctx = dataclasses.replace(context(META), progress=progress)
    plan = Condensation(1, 4, TRAINING, PIXELS, DC)
    return condense(ctx, ByClass(ctx.records), images(META), plan)


@pytest.mark.parametrize("loop", [distribution_matching, sketching, condensing])
def test_the_loss_is_read_after_the_last_step(
    loop: Callable[[Callable[[int, int], None]], object],
) -> None:
    assert progressed(loop) == [1, 2, 3, 4]


def test_an_evaluation_is_read_after_the_last_record(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = context(META)
    many = Records(ctx.records.split, torch.arange(12).repeat(50), SCALING, META)
    taken: list[int] = []
    take = Records.take

    def counted(records: Records, positions: Tensor) -> tuple[Tensor, Tensor]:
        taken.append(len(positions))
        return take(records, positions)

    monkeypatch.setattr(Records, "take", counted)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        score(ctx.task, weights(META), many)
    assert sum(taken) == len(many)
    assert len(taken) > 1


def test_the_compiler_is_used_on_an_accelerator_for_networks_with_a_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernels are for processors: there alone ``compile = "on"`` has nothing to do."""
    model = ConvNet((1, 8, 8), 3, width=64)
    assert model.fast_inference
    assert model.written_out(64, 1) is not None
    made: list[str] = []

    def compiled(function: Callable[..., object], **_: object) -> Callable[..., object]:
        made.append(function.__qualname__ if hasattr(function, "__qualname__") else "gradient")
        return function

    monkeypatch.setattr(torch, "compile", compiled)
    for module in (matching, gradient_matching):
        monkeypatch.setattr(module, "compiler_found", lambda: True)
        module._compiled.cache_clear()
    numbers = []
    for device in (torch.device("cpu"), META):
        here = dataclasses.replace(task(device), model=model)
        params = {k: v.to(device) for k, v in model.init(Rng(0).torch()).items()}
        x, labels = torch.zeros(64, 1, 8, 8, device=device), torch.zeros(64, device=device).long()
        class_means(here, params, [(x, labels)], torch.full((3,), 64), Matching(compiled=True))
        weight_gradient(here, params, x, labels, compiled=True)
        numbers.append(len(made))
    for module in (matching, gradient_matching):
        module._compiled.cache_clear()
    assert numbers == [0, 2]


@pytest.mark.parametrize(
    ("rows", "most", "computed"),
    [
        (1, 16, 16),
        (16, 16, 16),
        (40, 16, 16),
        (10, 64, 16),
        (64, 512, 64),
        (65, 512, 128),
        (3, 2, 2),
    ],
)
def test_a_compiled_function_gets_few_shapes_and_little_padding(
    rows: int, most: int, computed: int
) -> None:
    assert matching.compiled_rows(rows, most) == computed


@pytest.mark.slow
def test_torch_compile_gives_the_same_gradients() -> None:
    """The real compiler, on a network without a kernel (it takes a minute, most of it g++)."""
    if not matching.compiler_found():
        pytest.skip("no C++ compiler")
    here = dataclasses.replace(task(torch.device("cpu")), model=ConvNet((1, 8, 8), 3, width=4))
    params = here.model.init(Rng(0).torch())
    x, labels = images(torch.device("cpu")).flatten(0, 1), torch.arange(6) % 3
    plain, fast = (weight_gradient(here, params, x, labels, compiled=c) for c in (False, True))
    for mine, theirs in zip(fast, plain, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)
    means = class_means(here, params, [(x, labels)], torch.full((3,), 2), Matching())
    steps = [
        pixel_gradient(here, params, images(here.device), means, Matching(compiled=c))[0]
        for c in (False, True)
    ]
    assert torch.allclose(steps[0], steps[1], atol=1e-5)
