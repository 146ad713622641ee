"""Two clients at once: two processes of one thread against one process of two threads.

FedDM's work on the papers' ConvNet (random images of 28x28, 64 per class and iteration). The two
ways alternate, one round each, and the best of each counts. Needs two free cores.

    python benchmarks/workers.py [--repeats 4] [--width 128]
"""

import argparse
import tempfile
import time
from pathlib import Path

from random_experiment import random_experiment

from fedstill.build import BuiltExperiment
from fedstill.engine.base import Engine
from fedstill.engine.local import InProcess, WorkerPool
from fedstill.federation import Federation
from fedstill.observe.observer import Observer
from fedstill.runs.folder import RunFolder

CLIENTS, RECORDS = 2, 2000
METHOD = {"name": "feddm", "iterations": 4, "real_batch": 64, "server_epochs": 1}


class Way:
    """One way to compute a round, with everything warm."""

    def __init__(self, built: BuiltExperiment, engine: Engine, folder: Path) -> None:
        self.engine = engine
        self.federation = Federation(built, RunFolder(folder), Observer())
        self.federation.begin()
        self.seconds: list[float] = []

    def round(self) -> None:
        begun = time.perf_counter()
        self.federation.step(self.engine)
        self.seconds.append(time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()

    def experiment(threads: int) -> BuiltExperiment:
        return random_experiment(
            clients=CLIENTS,
            records=RECORDS,
            rounds=options.repeats + 1,
            method=METHOD,
            model={"name": "convnet", "width": options.width},
            engine={"threads": threads},
        )

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one, two = experiment(1), experiment(2)
        with WorkerPool(one, 2, folder / "work") as processes, InProcess(two) as inside:
            ways = {
                "two processes of one thread": Way(one, processes, folder / "processes"),
                "one process of two threads": Way(two, inside, folder / "threads"),
            }
            for _ in range(options.repeats + 1):
                for way in ways.values():
                    way.round()
    times = {name: min(way.seconds[1:]) for name, way in ways.items()}  # the first one warms up
    for name, seconds in times.items():
        print(f"{name}: {seconds:.2f} s per round")
    processes_, threads = times.values()
    print(f"processes are {threads / processes_:.2f} times as fast")


if __name__ == "__main__":
    main()
