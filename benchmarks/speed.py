"""The table of speed in docs/measurements.md: all of it, measured in one run.

    python benchmarks/speed.py --other DIR/src [--out FILE]

Runs the other benchmarks one after another, each in a process of its own that measures both sides
of its lines in turns, in processor time of one thread. ``DIR`` holds version 0.2.0, the last one
before the work on speed (``git worktree add DIR 0f5e159``); a line says what it is measured
against. About half an hour on a core of its own. Lines whose library (pfl, Opacus, Flower) is not
installed are left out. The table is written again after every benchmark.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
OLD = "version 0.2.0"


@dataclass(frozen=True)
class Line:
    """One line of the table: two of the numbers that a benchmark prints last, as JSON."""

    what: str
    against: str
    before: str
    after: str


@dataclass(frozen=True)
class Benchmark:
    command: str
    lines: tuple[Line, ...]


def matching(width: int, real: int, repeats: int) -> Benchmark:
    loop, name = (
        "the loop over classes",
        f"matching step, width {width}, {real} real images per class",
    )
    kinds = {"": "(b)", ", native kernel": "(d)", ", 4 steps per draw": "(c)"}
    kinds[", native kernel, 4 steps per draw"] = "(e)"
    lines = tuple(Line(name + kind, loop, "(a)", key) for kind, key in kinds.items())
    options = f"--cpu-time --native --json --width {width} --real {real} --repeats {repeats}"
    return Benchmark(f"distribution_matching.py {options}", lines)


def gradients(width: int) -> Benchmark:
    name = f"gradient-matching step, width {width}"
    lines = (
        Line(name, "autograd", "(b)", "(d)"),
        Line(f"{name}, 5 pixel updates", "autograd", "(b) 5", "(d) 5"),
        Line(f"{name}, 5 pixel updates", "the papers' loop", "(a) 5", "(d) 5"),
    )
    return Benchmark(f"gradient_matching.py --keep-memory --json --width {width}", lines)


def unrolled(width: int) -> Benchmark:
    line = Line(f"4 unrolled SGD steps of 32, width {width}", "autograd", "autograd", "ours")
    options = f"--compare --keep-memory --json --width {width} --examples 32"
    return Benchmark(f"unroll.py {options}", (line,))


def batch(width: int) -> Benchmark:
    name = f"gradient of a training batch of 32, width {width}"
    line = Line(name, "autograd", "autograd 32", "ours 32")
    return Benchmark(f"batch_gradient.py --json --width {width}", (line,))


def clients(number: int) -> Benchmark:
    sampled = 100 if number >= 10_000 else 10
    name = f"round of {sampled} of {number:,} clients"
    lines = [
        Line(name, who, f"{key} {number} round", f"ours {number} round")
        for key, who in OTHERS.items()
    ]
    lines += [
        Line(
            f"{name}, in turns in one process",
            "a bare loop",
            f"paired {number} bare",
            f"paired {number} ours",
        ),
        Line(
            f"start with {number:,} clients", OLD, f"other {number} start", f"ours {number} start"
        ),
        Line(
            f"peak memory, {number:,} clients",
            OLD,
            f"other {number} peak_mb",
            f"ours {number} peak_mb",
        ),
        Line(
            f"peak memory, {number:,} clients",
            "pfl",
            f"pfl {number} peak_mb",
            f"ours {number} peak_mb",
        ),
    ]
    return Benchmark(f"many_clients.py --json --only {number} --other OTHER", tuple(lines))


STARTS = {
    "fedstill --help": "`fedstill --help`",
    "fedstill list": "`fedstill list`",
    "an unknown method": "a request that is refused",
    "five rounds of fedavg on the digits": "five rounds of `fedavg` on the digits, start to end",
    "a worker to its first step of feddm": "a worker process to its first step of `feddm`",
    "a Flower node's process to its first step of feddm": "a Flower node, the same",
}
OTHERS = {"other": OLD, "pfl": "pfl", "pfl+": "pfl with our settings", "bare": "a bare loop"}
HALF = {
    width: f"a training gradient of an image in bfloat16, width {width}" for width in (32, 64, 128)
}
PER_RECORD = "256 clipped gradients per record, ConvNet"
BENCHMARKS = (
    matching(128, 256, 2),
    matching(128, 64, 3),
    matching(32, 64, 4),
    *(gradients(width) for width in (128, 32)),
    *(batch(width) for width in (128, 32)),
    *(unrolled(width) for width in (128, 32)),
    Benchmark(
        "per_record.py --model convnet --cpu-time --json",
        (Line(PER_RECORD, "Opacus' hooks", "convnet, Opacus hooks", "convnet, ours"),),
    ),
    Benchmark(
        "precision.py --json",
        tuple(Line(n, "float32", f"float32 {w}", f"bfloat16 {w}") for w, n in HALF.items()),
    ),
    Benchmark(
        "start.py --json --repeats 3 --other OTHER",
        tuple(Line(name, OLD, f"before {key}", f"after {key}") for key, name in STARTS.items()),
    ),
    *(clients(number) for number in (100, 1_000, 10_000, 100_000)),
)


def measured(benchmark: Benchmark, other: Path) -> dict[str, float]:
    """The numbers of a benchmark by their names, in seconds."""
    script, *options = benchmark.command.replace("OTHER", str(other)).split()
    call = [sys.executable, str(HERE / script), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{benchmark.command}:\n{done.stderr}")
    numbers: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return numbers


def shown(value: float, key: str) -> str:
    if key.endswith("_mb"):
        return f"{value:.0f} MB"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def machine() -> str:
    """What this was measured on, without its name."""
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    vectors = [name for name in ("avx2", "avx512f", "avx512_bf16") if name in flags]
    what = ", ".join(vectors) or platform.machine()
    return f"{os.cpu_count()} cores, {what}, PyTorch {torch.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--other", type=Path, required=True, help="the sources of version 0.2.0")
    parser.add_argument("--out", type=Path, help="a file for the table too")
    options = parser.parse_args()
    if not (options.other / "fedstill").is_dir():
        parser.error(f"--other {options.other}: there is no fedstill in it; name the folder src")
    rows = ["| what | before | after | ratio | against |", "|---|---|---|---|---|"]
    print(f"{machine()}\n\n" + "\n".join(rows), flush=True)
    for benchmark in BENCHMARKS:
        numbers = measured(benchmark, options.other.resolve())
        found = [f"| `{benchmark.command}` | | | | |"]
        for line in benchmark.lines:
            if line.before not in numbers:
                continue  # a library that is not installed
            before, after = numbers[line.before], numbers[line.after]
            values = f"{shown(before, line.before)} | {shown(after, line.after)}"
            found.append(f"| {line.what} | {values} | {before / after:.2f} | {line.against} |")
        print("\n".join(found), flush=True)
        rows += found
        if options.out:
            options.out.write_text("\n".join([machine(), "", *rows, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
