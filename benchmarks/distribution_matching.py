"""The distribution-matching step, ours against the loop over classes in the papers' code.

    python benchmarks/distribution_matching.py [--real 256] [--threads 2 | --cpu-time] [--native]

In one run, on the same tensors and weights: (a) one class after another, eager; (b) ours; (c) ours
with several pixel steps for one real side (``steps_per_draw``), as the time per pixel step, in
which (a) computes the real side anew; (d) and (e) are (b) and (c) by the compiled kernel
(``FEDSTILL_NATIVE=on``); (f) is (b) with torch.compile. Pixel gradients are compared with each
other and with float64. Times are the best of the repeats, in alternation so that other load on the
machine affects all alike. The fraction of this machine's single-precision matrix-multiply peak
counts the multiplications and additions that the definition of the step needs, for all programs
alike. Everything is measured again with the C library set to keep freed memory
(``fedstill.engine.memory``), which helps (a) too; all ratios are to (a) without it.
"""

import argparse
import json
import os
import time
from collections.abc import Callable

import torch
from torch import Tensor

from fedstill.engine.memory import keep_freed_memory
from fedstill.models import ConvNet
from fedstill.models.kernels.library import SWITCH, compiled
from fedstill.rng import Rng
from fedstill.scaling import Scaling
from fedstill.steps.matching import Matching, class_means, pixel_gradient
from fedstill.types import Params, Task

Step = Callable[[], Tensor]


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    model = ConvNet((1, 28, 28), 10, width=options.width)
    task = Task(model, model.shape, model.classes, 1, 1, Scaling((), ()))
    params = model.init(Rng(0).at("weights").torch())
    generator = Rng(0).at("images").torch()
    real = torch.randn(10, options.real, *model.shape, generator=generator)
    images = torch.randn(10, options.ipc, *model.shape, generator=generator)

    steps: dict[str, Step] = {
        "(a) class by class, eager": lambda: per_class(model, params, real, images),
        "(b) ours": lambda: ours(task, params, real, images),
    }
    several = f"{options.steps} steps per draw, per step"
    steps[f"(c) {several}"] = lambda: ours(task, params, real, images, steps=options.steps)
    if options.native:
        if compiled() is None:
            raise SystemExit("--native: the kernel was not compiled, see the warning")
        steps["(d) ours, native"] = natively(steps["(b) ours"])
        steps[f"(e) native, {several}"] = natively(steps[f"(c) {several}"])
    if options.compile:
        steps["(f) ours, torch.compile"] = lambda: ours(task, params, real, images, compiled=True)
    reference = per_class(
        model, {k: v.double() for k, v in params.items()}, real[:, :8].double(), images.double()
    )
    print(f"float64 check with 8 real images per class, {options.threads} threads")
    for name, close in {
        "(a)": per_class(model, params, real[:, :8], images),
        "(b)": ours(task, params, real[:, :8], images),
    }.items():
        print(f"  {name} relative L2 error {_apart(close, reference):.1e}")
    agreed = {}
    for name, step in steps.items():
        begun = time.perf_counter()
        agreed[name] = step()
        print(f"first call of {name}: {time.perf_counter() - begun:.1f} s")
    first = agreed["(a) class by class, eager"]
    for name, gradient in agreed.items():
        apart = _apart(gradient, first)
        # A ReLU's input that is a rounding error from zero changes an image's gradient by 1e-3.
        assert apart < 5e-3, f"{name} computes something else"
        print(f"{name}: pixel gradient {apart:.1e} from (a)")

    clock = time.process_time if options.cpu_time else time.perf_counter
    peak = _matmul_peak(clock)
    flops = _flops(model, options.real, options.ipc)
    print(f"matrix multiply: {peak / 1e9:.0f} GFLOPS; the step needs {flops / 1e9:.0f} GFLOP")
    pixel_steps = {name: options.steps for name in steps if several in name}
    best = _best(steps, options.repeats, clock, pixel_steps)
    slow = best["(a) class by class, eager"]
    print(f"\n| {options.real} real images per class | ms | times (a) | of the peak |")
    print("|---|---|---|---|")
    kept = _best(steps, options.repeats, clock, pixel_steps) if keep_freed_memory() else {}
    for suffix, times in {"": best, ", freed memory kept": kept}.items():
        for name, seconds in times.items():
            share = flops / seconds / peak
            print(f"| {name}{suffix} | {seconds * 1e3:.0f} | {slow / seconds:.2f} | {share:.0%} |")
    if options.json:
        # With freed memory kept, as our workers keep it, for all programs alike.
        print(json.dumps({name[:3]: seconds for name, seconds in (kept or best).items()}))


def per_class(model: ConvNet, params: Params, real: Tensor, images: Tensor) -> Tensor:
    """What the published code does: a forward pass of each class's real batch, then its images."""
    x = images.clone().requires_grad_(True)
    total = images.new_zeros(())
    for batch, synthetic in zip(real, x, strict=True):
        target = _features(model, params, batch)
        features = _features(model, params, synthetic)
        for a, b in zip(target, features, strict=True):
            total = total + (a.detach().mean(0) - b.mean(0)).square().sum()
    return torch.autograd.grad(total, x)[0]


def _features(model: ConvNet, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
    """The papers' ConvNet out of PyTorch's own layers, conv bias and library pooling included.

    As there, neither the weights nor the real images require gradients.
    """
    f = torch.nn.functional
    for block in range(model.blocks):
        name = f"block{block}"
        weight, bias = params[f"{name}.conv.weight"], params[f"{name}.conv.bias"]
        x = f.conv2d(x, weight, bias, padding=3 if block == 0 else 1)
        x = f.group_norm(x, x.shape[1], params[f"{name}.norm.weight"], params[f"{name}.norm.bias"])
        x = f.avg_pool2d(f.relu(x), 2)
    hidden = x.flatten(1)
    return hidden, f.linear(hidden, params["linear.weight"], params["linear.bias"])


def ours(
    task: Task,
    params: Params,
    real: Tensor,
    images: Tensor,
    *,
    compiled: bool = False,
    steps: int = 1,
) -> Tensor:
    """The last pixel gradient of ``steps`` that share a real side; the images stay as they are."""
    how = Matching(compiled=compiled)
    slots = torch.arange(len(real)).repeat_interleave(real.shape[1])
    counts = torch.full((len(real),), real.shape[1])
    size = task.model.chunk
    chunks = zip(real.flatten(0, 1).split(size), slots.split(size), strict=True)
    means = class_means(task, params, chunks, counts, how)
    return [pixel_gradient(task, params, images, means, how)[0] for _ in range(steps)][-1]


def natively(step: Step) -> Step:
    """The same step by the compiled kernel."""

    def native() -> Tensor:
        os.environ[SWITCH] = "on"
        try:
            return step()
        finally:
            os.environ[SWITCH] = "off"

    return native


def _apart(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def _best(
    steps: dict[str, Step], repeats: int, clock: Callable[[], float], pixel_steps: dict[str, int]
) -> dict[str, float]:
    """Seconds per pixel step."""
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(repeats):
        for name, step in steps.items():
            begun = clock()
            step()
            seconds = (clock() - begun) / pixel_steps.get(name, 1)
            best[name] = min(best[name], seconds)
    return best


def _matmul_peak(clock: Callable[[], float], size: int = 1536, repeats: int = 12) -> float:
    a, b = torch.randn(size, size), torch.randn(size, size)
    best = float("inf")
    for _ in range(repeats):
        begun = clock()
        torch.mm(a, b)
        best = min(best, clock() - begun)
    return 2 * size**3 / best


def _flops(model: ConvNet, real: int, ipc: int) -> float:
    """Convolutions and the linear layer; forward for real images, backward for the pixels."""
    side, channels, forward = 32, 1, 0.0
    for _ in range(model.blocks):
        forward += 2 * side * side * channels * 9 * model.width
        side, channels = side // 2, model.width
    forward += 2 * side * side * channels * model.classes
    return 10 * (real * forward + ipc * 2 * forward)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--real", type=int, default=256, help="real images per class")
    parser.add_argument("--ipc", type=int, default=10, help="synthetic images per class")
    parser.add_argument("--steps", type=int, default=4, help="pixel steps per draw of (c)")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--native", action="store_true", help="also (d), (e); needs a C++ compiler")
    parser.add_argument("--compile", action="store_true", help="also (f); needs a C++ compiler")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="processor time, with one thread: fair where others share the cores",
    )
    parser.add_argument("--json", action="store_true", help="a last line for speed.py")
    options = parser.parse_args()
    if options.cpu_time:
        options.threads = 1
    return options


if __name__ == "__main__":
    main()
