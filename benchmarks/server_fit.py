"""The server's training on a few real images: the former one, and the new one piece by piece.

    python benchmarks/server_fit.py --data-dir DIR [--data mnist] [--images 3] [--seeds 0 1 2]

One round of `real` (10 clients, Dirichlet 0.01, `convnet-small`): all rows have the same images.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import fedstill

STEPS = {
    "server_steps": 600,
    "server_batch": 32,
    "server_schedule": "cosine",
    "server_balanced": False,
}
FITS: dict[str, dict[str, Any]] = {
    "40 epochs, batches of 256": {
        "server_epochs": 40,
        "server_batch": 256,
        "server_schedule": "constant",
        "server_augment": "none",
        "server_balanced": False,
    },
    "600 steps of 32, cosine": {**STEPS, "server_augment": "none"},
    "and DSA": {**STEPS, "server_augment": "dsa"},
    "affine instead": {**STEPS, "server_augment": "affine"},
    "affine and elastic": {**STEPS, "server_augment": "affine+elastic"},
    "photo": {**STEPS, "server_augment": "photo"},
    "the default: auto, balanced": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--data-dir")
    parser.add_argument("--partition", default="dirichlet:0.01")
    parser.add_argument("--images", type=int, default=3, help="per class and client")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", default=list(FITS), choices=list(FITS))
    options = parser.parse_args()
    for name in options.only:
        accuracies: list[float] = []
        for seed in options.seeds:
            settings = {"images_per_class": options.images, **FITS[name]}
            with tempfile.TemporaryDirectory() as folder:
                result = fedstill.run(
                    "real",
                    data=options.data,
                    data_dir=options.data_dir,
                    partition=options.partition,
                    clients=10,
                    rounds=1,
                    seed=seed,
                    out=Path(folder) / "run",
                    set={f"method.{key}": value for key, value in settings.items()},
                )
            accuracies.append(100 * (result.summary.accuracy or 0.0))
        each = ", ".join(f"{accuracy:.1f}" for accuracy in accuracies)
        print(f"{name:32} {statistics.fmean(accuracies):5.1f}  ({each})", flush=True)


if __name__ == "__main__":
    main()
