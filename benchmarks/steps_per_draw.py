"""Several pixel steps per draw of weights and records: accuracy against processor time.

    python benchmarks/steps_per_draw.py --data-dir DIR [--method feddm] [--data mnist]
        [--initial noise]

One round (10 clients, `convnet-small`). A row is T draws of N steps each; 0x1 does not match at
all. The processor time is that of all clients together.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import fedstill

ROWS = ("0x1", "48x1", "24x2", "12x4", "6x8", "12x1", "12x2", "12x8")


def main() -> None:
    options = _options()
    print("| draws x steps | accuracy | by seed | processor seconds |\n|---|---|---|---|")
    for row in options.rows:
        draws, steps = map(int, row.split("x"))
        accuracies, seconds = [], []
        for seed in options.seeds:
            accuracy, took = measured(options, draws, steps, seed)
            accuracies.append(accuracy)
            seconds.append(took)
        spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        each = ", ".join(f"{accuracy:.1f}" for accuracy in accuracies)
        mean, took = statistics.fmean(accuracies), statistics.fmean(seconds)
        print(f"| {row} | {mean:.1f} ± {spread:.1f} | {each} | {took:.0f} |", flush=True)


class Clients(fedstill.Observer):
    """The processor time between the start of a round and the last client's answer."""

    seconds = 0.0

    def round_started(self, round: int, clients: list[int]) -> None:
        self.begun = time.process_time()

    def client_done(self, client: int, error: str | None) -> None:
        self.seconds = time.process_time() - self.begun


def measured(options: argparse.Namespace, draws: int, steps: int, seed: int) -> tuple[float, float]:
    """Test accuracy in percent, and processor seconds of the clients."""
    pixels = {"pixel_optimiser": "adam", "pixel_learning_rate": 0.1}
    settings = {
        "images_per_class": options.images,
        "iterations": draws,
        "steps_per_draw": steps,
        "initial": options.initial,
        **(pixels if options.initial == "noise" else {}),
    }
    clients = Clients()
    with tempfile.TemporaryDirectory() as folder:
        result = fedstill.run(
            options.method,
            data=options.data,
            data_dir=options.data_dir,
            partition=options.partition,
            clients=10,
            rounds=1,
            seed=seed,
            model="convnet-small",
            workers=1,
            out=Path(folder) / "run",
            progress=False,
            observer=clients,
            set={f"method.{key}": value for key, value in settings.items()},
        )
    return 100 * (result.summary.accuracy or 0.0), clients.seconds


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--method", default="feddm", choices=["feddm", "feddualmatch"])
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--data-dir")
    parser.add_argument("--partition", default="dirichlet:0.01")
    parser.add_argument("--initial", default="real", choices=["real", "noise"])
    parser.add_argument("--images", type=int, default=1, help="per class and client")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", nargs="+", default=list(ROWS), help="TxN: draws x steps per draw")
    return parser.parse_args()


if __name__ == "__main__":
    main()
