"""Random images in memory, partitioned evenly: for benchmarks, which only measure time."""

from typing import Any

import torch

from fedstill.build import BuiltExperiment, build
from fedstill.data import Dataset, Partition, Scaling, Split
from fedstill.rng import Rng

SHAPE, CLASSES, TEST = (1, 28, 28), 10, 500


def random_experiment(*, clients: int, records: int, **request: Any) -> BuiltExperiment:
    """An experiment on this many images of the size of MNIST's; ``request`` as in its TOML."""
    draw = Rng(0).at("images").numpy()

    def split(size: int) -> Split:
        images = torch.from_numpy(draw.integers(0, 256, (size, *SHAPE), dtype="uint8"))
        return Split(images, torch.from_numpy(draw.integers(0, CLASSES, size)))

    names = tuple(str(i) for i in range(CLASSES))
    data = Dataset("random", split(records), split(TEST), names, Scaling((0.5,), (0.25,)), "")
    owner = (torch.arange(records) % clients).int()
    return build(request, dataset=data, partition=Partition(owner, clients))
