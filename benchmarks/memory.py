"""What a thousand clients cost in memory against ten.

Clients are indices into one tensor and their states are on disk, so the two should need the same.
Each measurement is a separate process: data of MNIST's size (60,000 images of 28x28, random),
SCAFFOLD (the method with the largest client state, one vector of weights per client), ten clients
sampled per round; the state of every client that was sampled is kept. Peak resident memory is
reported.

    python benchmarks/memory.py
"""

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import fedstill
from fedstill.rng import Rng

RECORDS, ROUNDS, SAMPLED = 60_000, 12, 10


def measure(clients: int) -> None:
    draw = Rng(0).at("images").numpy()
    images = draw.integers(0, 256, (RECORDS, 1, 28, 28), dtype="uint8")
    labels = draw.integers(0, 10, RECORDS)
    data = fedstill.arrays(images, labels, images[:1000], labels[:1000])
    before = _peak()
    with tempfile.TemporaryDirectory() as folder:
        fedstill.run(
            "scaffold",
            data=data,
            clients=clients,
            partition="iid",
            participation=SAMPLED / clients,
            # The same number of rounds would give ten clients a hundred times the work.
            rounds=ROUNDS if clients > SAMPLED else 2,
            model="mlp",
            workers=1,
            out=Path(folder) / "run",
            set={"method.batch_size": 256},
        )
    print(f"{clients:5d} clients: {_peak():7.1f} MB at the peak, {before:7.1f} MB before the run")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(int(sys.argv[1]))
    else:
        for number in (10, 1000):
            subprocess.run([sys.executable, __file__, str(number)], check=True)
