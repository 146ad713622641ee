"""The gradient of a training batch: autograd against the ConvNet's own derivatives.

    python benchmarks/batch_gradient.py [--width 128] [--repeats 8]

Processor milliseconds of one thread, the best of the repeats, in alternation. Where the network
leaves a batch to autograd, both columns are autograd's.
"""

import argparse
import json
import time
from dataclasses import dataclass

import torch

from fedstill.engine.memory import keep_freed_memory
from fedstill.models import ConvNet
from fedstill.rng import Rng
from fedstill.scaling import Scaling
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.types import Task


@dataclass(frozen=True)
class ByAutograd(ConvNet):
    """The same network without its own derivatives."""

    def written_out(self, records: int, order: int) -> None:
        return None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="a last line for speed.py")
    options = parser.parse_args()
    found: dict[str, float] = {}
    torch.set_num_threads(1)
    keep_freed_memory()
    tasks = {
        name: Task(
            kind((1, 28, 28), 10, width=options.width), (1, 28, 28), 10, 1, 1, Scaling((), ())
        )
        for name, kind in {"autograd": ByAutograd, "ours": ConvNet}.items()
    }
    params = tracked(tasks["ours"].model.init(Rng(0).at("weights").torch()))
    for records in (8, 16, 32, 64, 128):
        x = torch.randn(records, 1, 28, 28, generator=Rng(0).at("images").torch())
        y = torch.arange(records) % 10
        best = dict.fromkeys(tasks, float("inf"))
        for _ in range(options.repeats):
            for name, task in tasks.items():
                begun = time.process_time()
                batch_gradient(task, params, x, y)
                best[name] = min(best[name], time.process_time() - begun)
        slow, fast = (seconds * 1e3 for seconds in best.values())
        print(f"width {options.width}, {records:3d} records: {slow:.1f}, {fast:.1f}", end="")
        print(f" ({slow / fast:.2f})", flush=True)
        found |= {f"autograd {records}": slow / 1e3, f"ours {records}": fast / 1e3}
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
