"""The gradient of a batch in single precision and in bfloat16, side by side.

    python benchmarks/precision.py

Processor time of one thread per image, forward and backward. It pays where the processor has
instructions for bfloat16 (AVX512_BF16, AMX); elsewhere it is slower.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from fedstill.models.convnet import ConvNet
from fedstill.rng import Rng
from fedstill.scaling import Scaling
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.types import Task

_IMAGES = 64


def best(works: Sequence[Callable[[], object]], repeats: int = 8) -> list[float]:
    """The least processor time of each, in turns: other load on the machine affects all alike."""
    least = [float("inf")] * len(works)
    for _ in range(repeats):
        for place, work in enumerate(works):
            began = time.process_time()
            work()
            least[place] = min(least[place], time.process_time() - began)
    return least


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true", help="a last line for speed.py")
    options = parser.parse_args()
    found: dict[str, float] = {}
    torch.set_num_threads(1)
    shape = (3, 32, 32)
    x = torch.randn(_IMAGES, *shape, generator=Rng(0).torch())
    y = torch.arange(_IMAGES) % 10
    print("width  float32  bfloat16  ratio   (ms per image)")
    for width in (32, 64, 128):
        model = ConvNet(shape, 10, width)
        task = Task(model, shape, 10, 1, 1, Scaling((), ()))
        half = replace(task, precision=torch.bfloat16)
        params = tracked(model.init(Rng(1).torch()))
        works = [partial(batch_gradient, how, params, x, y, mixed=True) for how in (task, half)]
        full, cast = (1000 / _IMAGES * seconds for seconds in best(works))
        print(f"{width:5d}  {full:7.2f}  {cast:8.2f}  {full / cast:5.2f}")
        found |= {f"float32 {width}": full / 1e3, f"bfloat16 {width}": cast / 1e3}
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
