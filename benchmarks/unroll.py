"""Backpropagation through m SGD steps: one large graph against ours, in memory and in time.

The same gradients of inputs and soft labels, on the papers' ConvNet. Each measurement is a separate
process; memory is the peak of resident memory above its size before the steps, time is processor
time of the fastest of three. "every step" keeps the weights of all steps, "root" those before every
sqrt(m)-th. "by autograd" does without the network's own derivatives.

    python benchmarks/unroll.py [--width 128] [--examples 8] [--compare]
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstill.data import Scaling
from fedstill.engine.memory import keep_freed_memory
from fedstill.models import ConvNet
from fedstill.rng import Rng
from fedstill.steps.unroll import Batches, backward, unroll
from fedstill.types import Params, Task

RATE = 0.01
AUTOGRAD = "ours, by autograd"


@dataclass(frozen=True)
class ByAutograd(ConvNet):
    """The same network without its own derivatives."""

    def written_out(self, records: int, order: int) -> None:
        return None


def one_large_graph(task: Task, start: Params, batches: Batches) -> Tensor:
    x, y = (t.clone().requires_grad_(True) for t in (batches.x, batches.y))
    weights = {k: v.clone().requires_grad_(True) for k, v in start.items()}
    for step in range(len(batches)):
        loss = task.loss(task.model.apply(weights, x[step]), y[step]).mean()
        gradients = torch.autograd.grad(
            loss,
            list(weights.values()),
            create_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        weights = {k: w - RATE * g for (k, w), g in zip(weights.items(), gradients, strict=True)}
    total = torch.stack([w.square().sum() for w in weights.values()]).sum() / 2
    return torch.autograd.grad(total, [x, y])[0]


def ours(stride: Callable[[int], int]) -> Callable[[Task, Params, Batches], Tensor]:
    def gradient(task: Task, start: Params, batches: Batches) -> Tensor:
        path = unroll(task, start, batches, RATE, stride(len(batches)))
        return backward(task, path, batches, RATE, path.end).x

    return gradient


WAYS: dict[str, Callable[[Task, Params, Batches], Tensor]] = {
    "one large graph": one_large_graph,
    AUTOGRAD: ours(lambda steps: 1),
    "ours, every step": ours(lambda steps: 1),
    "ours, root": ours(lambda steps: round(steps**0.5)),
}


def problem(way: str, steps: int, width: int, examples: int) -> tuple[Task, Params, Batches]:
    network = (ByAutograd if way == AUTOGRAD else ConvNet)((1, 28, 28), 10, width=width)
    task = Task(network, (1, 28, 28), 10, 1, 1, Scaling((), ()))
    generator = Rng(0).torch()
    start = task.model.init(generator)
    x = torch.randn(steps, examples, *task.shape, generator=generator)
    y = torch.randn(steps, examples, 10, generator=generator).softmax(-1)
    return task, start, Batches(x, y)


def compare(steps: int, width: int, examples: int) -> dict[str, float]:
    """Times alone, in one process and in alternation."""
    torch.set_num_threads(1)
    ways = [AUTOGRAD, "ours, every step"]
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(6):
        for way in ways:
            task, start, batches = problem(way, steps, width, examples)
            begun = time.process_time()
            WAYS[way](task, start, batches)
            best[way] = min(best[way], time.process_time() - begun)
    slow, fast = best.values()
    print(f"width {width}, {examples} examples per step, m = {steps}: ", end="")
    print(f"by autograd {slow:.3f} s, ours {fast:.3f} s: {slow / fast:.2f} times as fast")
    return {"autograd": slow, "ours": fast}


def measure(way: str, steps: int, width: int, examples: int) -> None:
    torch.set_num_threads(1)
    task, start, batches = problem(way, steps, width, examples)
    warm = Batches(batches.x[:1], batches.y[:1])
    WAYS[way](task, start, warm)  # memory that the libraries need
    before, times = _peak(), []
    for _ in range(3):
        begun = time.process_time()
        found = WAYS[way](task, start, batches)
        times.append(time.process_time() - begun)
    grown = _peak() - before
    print(
        f"{way:18s} m = {steps:3d}: {grown:7.1f} MB more at the peak, {min(times):6.2f} s", end=""
    )
    print(f"  (gradient norm {float(found.norm()):.6g})", flush=True)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--examples", type=int, default=8)
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--compare", action="store_true", help="times alone, in alternation")
    parser.add_argument(
        "--keep-memory",
        action="store_true",
        help="let the C library keep freed memory, as our workers do",
    )
    parser.add_argument("--json", action="store_true", help="a last line for speed.py")
    options = parser.parse_args()
    if options.keep_memory:
        keep_freed_memory()
    if options.compare:
        found = compare(options.steps or 4, options.width, options.examples)
        if options.json:
            print(json.dumps(found))
        return
    if options.way:
        measure(options.way, options.steps, options.width, options.examples)
        return
    same = ["--width", str(options.width), "--examples", str(options.examples)]
    same += ["--keep-memory"] if options.keep_memory else []
    for steps in (4, 16, 64):
        for way in WAYS:
            own = ["--way", way, "--steps", str(steps)]
            subprocess.run([sys.executable, __file__, *own, *same], check=True)


if __name__ == "__main__":
    main()
