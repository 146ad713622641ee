"""The gradient-matching step, ours against the obvious eager loop.

    python benchmarks/gradient_matching.py [--real 256] [--images 100] [--compile]

In one run, on the same tensors and weights: (a) all images at once through PyTorch's own layers,
the graph kept and differentiated twice; (b) ours by autograd; (c) the same with the real side
compiled; (d) ours as it runs: by the network's own derivatives where it has them, else as (b).
Biases and norm scales are left out of the distance: the gradient of a bias before an instance norm
is zero, and what (a) finds there is the direction of its rounding errors.
Pixel gradients are compared with each other and with float64. Times are processor time of one
thread, the best of the repeats, in alternation. A step is one real gradient and the pixel updates
that it serves: 1, and ``--pixel-steps`` (R_b). The fraction of this machine's single-precision
matrix-multiply peak counts the multiplications and additions of convolutions and the linear layer
as they are defined: (d) needs fewer of them.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as f

from fedstill.engine.memory import keep_freed_memory
from fedstill.models import ConvNet
from fedstill.rng import Rng
from fedstill.scaling import Scaling
from fedstill.steps.gradient_matching import (
    FED_GLOSS,
    GradientDistance,
    grad_distance,
    gradient_matching_pixels,
    weight_gradient,
)
from fedstill.types import Params, Task

Real = Callable[[], list[Tensor]]
Pixels = Callable[[list[Tensor]], Tensor]
HOW = GradientDistance(normalize_rows=True, mse_weight=0.1)
EAGER = "(a) everything at once, eager"


@dataclass(frozen=True)
class ByAutograd(ConvNet):
    """The same network without its own derivatives."""

    def written_out(self, records: int, order: int) -> None:
        return None


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    if options.keep_memory:
        keep_freed_memory()
    model = ConvNet((1, 28, 28), 10, width=options.width)
    task, plain = (
        Task(network, model.shape, model.classes, 1, 1, Scaling((), ()))
        for network in (model, ByAutograd((1, 28, 28), 10, width=options.width))
    )
    params = model.init(Rng(0).at("weights").torch())
    generator = Rng(0).at("images").torch()
    x = torch.randn(options.real, *model.shape, generator=generator)
    images = torch.randn(options.images, *model.shape, generator=generator)
    y, labels = torch.arange(len(x)) % 10, torch.arange(len(images)) % 10

    programs: dict[str, tuple[Real, Pixels]] = {
        EAGER: (
            lambda: eager_real(model, params, x, y),
            lambda target: eager_pixels(model, params, images, labels, target),
        )
    }
    ours = {"(b) ours, autograd": False, "(c) ours, real side compiled": True}
    for name, compiled in ours.items():
        if not compiled or options.compile:
            programs[name] = _ours(plain, params, x, y, images, labels, compiled=compiled)
    programs["(d) ours"] = _ours(task, params, x, y, images, labels, compiled=False)

    target = eager_real(model, params, x, y)
    exact = {k: v.double() for k, v in params.items()}
    exact_target = [g.double() for g in target]
    reference = eager_pixels(model, exact, images[:20].double(), labels[:20], exact_target)
    few, own = (
        _ours(which, params, x, y, images[:20], labels[:20], compiled=False)[1](target)
        for which in (plain, task)
    )
    same = eager_pixels(model, params, images[:20], labels[:20], target)
    found = {"a": same, "b": few, "d": own}
    print("pixel gradient of 20 images, relative L2 error against float64: ", end="")
    print(", ".join(f"({k}) {_apart(v, reference):.1e}" for k, v in found.items()))
    noisy = eager_pixels(model, params, images[:20], labels[:20], target, FED_GLOSS)
    clean = gradient_matching_pixels(task, params, images[:20], labels[:20], target, FED_GLOSS)[0]
    print(f"biases in the distance: (a) is {_apart(noisy, clean):.1e} from (d), which adds none")
    first = eager_pixels(model, params, images, labels, target)
    for name, (real, pixels) in programs.items():
        begun = time.perf_counter()
        off = _apart(_vector(real()), _vector(target)), _apart(pixels(target), first)
        seconds = time.perf_counter() - begun
        print(f"{name}: first call {seconds:.1f} s; {off[0]:.1e} and {off[1]:.1e} from (a)")
        # A unit close to 0 may pass its ReLU in one program and not in the other.
        assert max(off) < 1e-2, f"{name} computes something else"

    peak = _matmul_peak()
    best = _best(programs, target, options.repeats)
    many = options.pixel_steps
    flops_real, flops_pixels = _flops(model, options.real, options.images)
    print(f"matrix multiply: {peak / 1e9:.0f} GFLOPS\n")
    print(
        f"| real {options.real}, synthetic {options.images}, width {options.width} | real ms |",
        end="",
    )
    print(f" pixels ms | step ms | times (a) | of the peak | {many} updates ms | times (a) |")
    print("|---|---|---|---|---|---|---|---|")
    slow = best[EAGER]
    for name, (real_s, pixels_s) in best.items():
        step, steps = real_s + pixels_s, real_s + many * pixels_s
        once, often = sum(slow) / step, (slow[0] + many * slow[1]) / steps
        share = (flops_real + flops_pixels) / step / peak
        print(
            f"| {name} | {real_s * 1e3:.0f} | {pixels_s * 1e3:.0f} | {step * 1e3:.0f} | {once:.2f} "
            f"| {share:.0%} | {steps * 1e3:.0f} | {often:.2f} |"
        )
    if options.json:
        numbers = {name[:3]: r + p for name, (r, p) in best.items()}
        numbers |= {f"{name[:3]} {many}": r + many * p for name, (r, p) in best.items()}
        print(json.dumps(numbers))


def eager_real(model: ConvNet, params: Params, x: Tensor, y: Tensor) -> list[Tensor]:
    """What the published code does: one batch, one backward pass."""
    weights = {k: v.clone().requires_grad_(True) for k, v in params.items()}
    loss = f.cross_entropy(_logits(model, weights, x), y)
    return list(torch.autograd.grad(loss, list(weights.values())))


def eager_pixels(
    model: ConvNet,
    params: Params,
    images: Tensor,
    labels: Tensor,
    target: list[Tensor],
    how: GradientDistance = HOW,
) -> Tensor:
    """What the published code does: one graph over all images, differentiated twice."""
    weights = {k: v.clone().requires_grad_(True) for k, v in params.items()}
    x = images.clone().requires_grad_(True)
    loss = f.cross_entropy(_logits(model, weights, x), labels)
    own = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
    return torch.autograd.grad(grad_distance(target, own, how), x)[0]


def _logits(model: ConvNet, params: Params, x: Tensor) -> Tensor:
    """The papers' ConvNet out of PyTorch's own layers, conv bias and library pooling included."""
    for block in range(model.blocks):
        name = f"block{block}"
        weight, bias = params[f"{name}.conv.weight"], params[f"{name}.conv.bias"]
        x = f.conv2d(x, weight, bias, padding=3 if block == 0 else 1)
        x = f.group_norm(x, x.shape[1], params[f"{name}.norm.weight"], params[f"{name}.norm.bias"])
        x = f.avg_pool2d(f.relu(x), 2)
    return f.linear(x.flatten(1), params["linear.weight"], params["linear.bias"])


def _ours(
    task: Task,
    params: Params,
    x: Tensor,
    y: Tensor,
    images: Tensor,
    labels: Tensor,
    *,
    compiled: bool,
) -> tuple[Real, Pixels]:
    def pixels(target: list[Tensor]) -> Tensor:
        return gradient_matching_pixels(task, params, images, labels, target, HOW)[0]

    return lambda: weight_gradient(task, params, x, y, compiled=compiled), pixels


def _vector(gradient: list[Tensor]) -> Tensor:
    """Without biases and norm scales, as in the distance."""
    return torch.cat([g.flatten() for g in gradient if g.dim() > 1])


def _apart(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def _best(
    programs: dict[str, tuple[Real, Pixels]], target: list[Tensor], repeats: int
) -> dict[str, tuple[float, float]]:
    best = dict.fromkeys(programs, (float("inf"), float("inf")))
    for _ in range(repeats):
        for name, (real, pixels) in programs.items():
            begun = time.process_time()
            real()
            between = time.process_time()
            pixels(target)
            spent = (between - begun, time.process_time() - between)
            best[name] = (min(best[name][0], spent[0]), min(best[name][1], spent[1]))
    return best


def _matmul_peak(size: int = 1536, repeats: int = 12) -> float:
    a, b = torch.randn(size, size), torch.randn(size, size)
    best = float("inf")
    for _ in range(repeats):
        begun = time.process_time()
        torch.mm(a, b)
        best = min(best, time.process_time() - begun)
    return 2 * size**3 / best


def _flops(model: ConvNet, real: int, images: int) -> tuple[float, float]:
    """Convolutions and the linear layer: 3 forwards' worth for a gradient, 7 for the pixels of
    its distance (forward 1, backward 2, backward of that 4)."""
    side, channels, forward = 32, 1, 0.0
    for _ in range(model.blocks):
        forward += 2 * side * side * channels * 9 * model.width
        side, channels = side // 2, model.width
    forward += 2 * side * side * channels * model.classes
    return 3 * real * forward, 7 * images * forward


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--real", type=int, default=256, help="real images in the batch")
    parser.add_argument("--images", type=int, default=100, help="synthetic images")
    parser.add_argument("--pixel-steps", type=int, default=5, help="updates per real gradient")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--json", action="store_true", help="a last line for speed.py")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--compile", action="store_true", help="also (c); needs a C++ compiler")
    parser.add_argument(
        "--keep-memory",
        action="store_true",
        help="let the C library keep freed memory, as our workers do",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
