"""Random images in memory, dealt out evenly: for benchmarks, which ask for time alone."""

from typing import Any

import torch

from fedstill.config import resolve
from fedstill.data import Dataset, Partition, Scaling, Split
from fedstill.rng import Rng
from fedstill.setup import Setup

SHAPE, CLASSES, TEST = (1, 28, 28), 10, 500


def random_setup(*, clients: int, records: int, **wishes: Any) -> Setup:
    """An experiment on this many images of the size of MNIST's; ``wishes`` as in its TOML."""
    draw = Rng(0).at("images").numpy()

    def split(size: int) -> Split:
        images = torch.from_numpy(draw.integers(0, 256, (size, *SHAPE), dtype="uint8"))
        return Split(images, torch.from_numpy(draw.integers(0, CLASSES, size)))

    names = tuple(str(i) for i in range(CLASSES))
    data = Dataset("random", split(records), split(TEST), names, Scaling((0.5,), (0.25,)), "")
    owner = (torch.arange(records) % clients).int()
    return Setup(resolve(wishes), data, Partition(owner, clients))
