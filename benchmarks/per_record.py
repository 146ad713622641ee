"""Clipped per-record gradients: ours against vmap, Opacus' hooks, norm-first, and no privacy.

    python benchmarks/per_record.py --cpu-time

One batch of 256 images of 28x28. "plain" is the chunked gradient without privacy, to which all
others are compared; every sum of clipped gradients is checked against the one by vmap.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from fedstill.engine.memory import keep_freed_memory
from fedstill.models import MLP, ConvNet, Model, ResNet18
from fedstill.privacy.mechanism import Stacked, clip_factors
from fedstill.rng import Rng
from fedstill.scaling import Scaling
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.steps.per_record import by_vmap, per_record_gradients
from fedstill.types import Params, Task

CLIP = 1.0
MODELS: dict[str, Model] = {
    "convnet": ConvNet((1, 28, 28), 10),
    "convnet-small": ConvNet((1, 28, 28), 10, width=32),
    "mlp": MLP((1, 28, 28), 10),
    "resnet18 (width 16)": ResNet18((1, 28, 28), 10, width=16),
}


def in_chunks(
    task: Task, x: Tensor, y: Tensor, chunk: int, clipped: Callable[..., Params]
) -> Params:
    total: Params = {}
    for part, labels in zip(x.split(chunk), y.split(chunk), strict=True):
        for name, value in clipped(task, part, labels).items():
            total[name] = total[name] + value if name in total else value
    return total


def plain(task: Task, params: Params, x: Tensor, y: Tensor) -> None:
    batch_gradient(task, tracked(params), x, y)


def ours(params: Params) -> Callable[[Task, Tensor, Tensor], Params]:
    def clipped(task: Task, x: Tensor, y: Tensor) -> Params:
        vectors = per_record_gradients(task, params, x, y)
        return vectors.weighted(clip_factors(vectors, CLIP))

    return clipped


def with_vmap(params: Params) -> Callable[[Task, Tensor, Tensor], Params]:
    def clipped(task: Task, x: Tensor, y: Tensor) -> Params:
        vectors = Stacked(by_vmap(task, params, x, y))
        return vectors.weighted(clip_factors(vectors, CLIP))

    return clipped


def norm_first(params: Params) -> Callable[[Task, Tensor, Tensor], Params]:
    """Norms first, then a second backward pass of the reweighted loss ("ghost clipping")."""

    def clipped(task: Task, x: Tensor, y: Tensor) -> Params:
        factors = clip_factors(per_record_gradients(task, params, x, y), CLIP)
        parts, _ = batch_gradient(task, tracked(params), x, y, factors * len(x))
        return dict(zip(params, parts, strict=True))

    return clipped


class AsModule(nn.Module):
    """The ConvNet with PyTorch's own layers, which Opacus' hooks need."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 1
        for block in range(3):
            layers += [
                nn.Conv2d(channels, width, 3, padding=1 if block else 3),
                nn.GroupNorm(width, width),
                nn.ReLU(),
                nn.AvgPool2d(2),
            ]
            channels = width
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * 16, 10))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


def opacus_hooks(width: int, x: Tensor, y: Tensor) -> Callable[[], None] | None:
    try:
        from opacus import GradSampleModule
    except ImportError:
        return None
    module = GradSampleModule(AsModule(width))

    def step() -> None:
        module.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        samples = [p.grad_sample for p in module.parameters()]
        norms = torch.stack([s.flatten(1).norm(dim=1) for s in samples]).norm(dim=0)
        factors = CLIP / norms.clamp(min=CLIP)
        for s in samples:
            torch.einsum("b,b...->...", factors, s)

    return step


def milliseconds(
    works: dict[str, Callable[[], object]], repeats: int, clock: Callable[[], float]
) -> dict[str, float]:
    """The least of some repeats, in turns: other load on the machine affects all alike."""
    times = {name: float("inf") for name in works}
    for repeat in range(repeats + 1):
        for name, work in works.items():
            begun = clock()
            work()
            if repeat:  # the first call allocates
                times[name] = min(times[name], (clock() - begun) * 1e3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", choices=[*MODELS], help="only this one")
    parser.add_argument("--cpu-time", action="store_true", help="for a machine with other work")
    parser.add_argument("--json", action="store_true", help="a last line for speed.py")
    arguments = parser.parse_args()
    found: dict[str, float] = {}
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    torch.set_num_threads(1)
    keep_freed_memory()
    rng = Rng(0)
    x = torch.randn(arguments.batch, 1, 28, 28, generator=rng.at("x").torch())
    y = torch.randint(0, 10, (arguments.batch,), generator=rng.at("y").torch())
    for name, model in MODELS.items():
        if arguments.model not in (None, name):
            continue
        task = Task(model, (1, 28, 28), 10, 1, 1, Scaling((0.5,), (0.5,)))
        params = model.init(rng.torch())
        chunk = min(model.chunk, 64 if name == "mlp" else 16)
        kinds: dict[str, Callable[[], object]] = {
            "plain": partial(plain, task, params, x, y),
        }
        for kind, make, size in (
            ("ours", ours, min(model.record_chunk, arguments.batch)),
            ("norm first", norm_first, chunk),
            ("vmap", with_vmap, chunk),
        ):
            kinds[kind] = partial(in_chunks, task, x, y, size, make(params))
        hooks = opacus_hooks(model.width, x, y) if isinstance(model, ConvNet) else None
        if hooks:
            kinds["Opacus hooks"] = hooks
        reference, got = kinds["vmap"](), kinds["ours"]()
        assert isinstance(reference, dict)
        assert isinstance(got, dict)
        worst = max(
            float((got[k] - v).norm() / v.norm().clamp(min=1e-3)) for k, v in reference.items()
        )
        times = milliseconds(kinds, arguments.repeats, clock)
        print(f"{name}: batch {arguments.batch}, ours differs from vmap by {worst:.1e}")
        for kind, spent in times.items():
            print(f"  {kind:14s} {spent:8.1f} ms   {spent / times['plain']:5.2f} x plain")
            found[f"{name}, {kind}"] = spent / 1e3
    if arguments.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
