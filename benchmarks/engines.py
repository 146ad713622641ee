"""The overhead of engines: the same rounds on the local engine, on Flower's simulation, deployed.

FedDM on the built-in digits with 10 clients, the same experiment three times; the models must
agree to the bit, or the comparison means nothing. A deployment is a SuperLink and ten SuperNodes
as processes on this machine. Flower starts one process per message, which imports PyTorch: that is
most of the overhead, and fewer cores share it here than on real nodes.

Then the bytes on the wire: what really went through a node's connection (without TLS) from the
end of the first round to the end of the last, against what fedstill counts. What is sent once (the
app, the introduction) is not included. An idle SuperNode polls for work all the time: its traffic
is measured first and subtracted.

    pip install 'fedstill[flower]'
    python benchmarks/engines.py [--rounds 4] [--only rounds|bytes]
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.engine.deployment import Deployment, Tap

import fedstill
from fedstill.engine.flower import INSTALL, require_flower
from fedstill.errors import RequestError
from fedstill.runs.folder import RunFolder

CLIENTS = 10
IDLE_SECONDS = 15


def seconds_of(folder: Path) -> list[float]:
    """Every round but the first, in which processes warm up."""
    return [metrics.seconds for metrics in RunFolder(folder).read_metrics()][1:]


def on_this_machine(engine: str, rounds: int, folder: Path) -> list[float]:
    fedstill.run("feddm", clients=CLIENTS, rounds=rounds, engine=engine, workers=2, out=folder)
    return seconds_of(folder)


def deployed(rounds: int, folder: Path) -> list[float]:
    options = ["feddm", "--clients", str(CLIENTS), "--rounds", str(rounds)]
    with Deployment(folder, *options, secure=False) as deployment:
        for client in range(CLIENTS):
            deployment.start_node(client)
        deployment.run()
        deployment.finished(3600)
    return seconds_of(folder / "run")


def compare_rounds(rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="fs") as name:
        folder = Path(name)
        measured = {
            "local": on_this_machine("local", rounds, folder / "local"),
            "simulation": on_this_machine("flower", rounds, folder / "simulation"),
            "deployment": deployed(rounds, folder / "deployed"),
        }
        models = [folder / "local", folder / "simulation", folder / "deployed" / "run"]
        contents = {(path / "model.safetensors").read_bytes() for path in models}
        assert len(contents) == 1, "not the same work: the models differ"
    base = statistics.median(measured["local"])
    print(f"FedDM, digits, {CLIENTS} clients, {rounds - 1} rounds each after the first")
    print(f"{'seconds per round':<18}{'best':>8}{'median':>8}{'overhead':>10}")
    for engine, seconds in measured.items():
        middle = statistics.median(seconds)
        print(f"{engine:<18}{min(seconds):>8.2f}{middle:>8.2f}{middle - base:>10.2f}")


@dataclass(frozen=True)
class Traffic:
    """The bytes that had passed a node's connection at a moment, up and down."""

    moment: float
    up: int
    down: int

    @classmethod
    def now(cls, tap: Tap) -> "Traffic":
        return cls(time.monotonic(), len(tap.up), len(tap.down))


def compare_bytes(rounds: int, width: int, folder: Path) -> None:
    options = ["fedavg", "--clients", "1", "--partition", "iid", "--rounds", str(rounds + 1)]
    options += ["--model", "mlp", "--set", f"model.width={width}"]
    with Deployment(folder, *options, secure=False) as deployment:
        tap = Tap(deployment.port)
        deployment.start_node(0, port=tap.port)
        deployment.wait(lambda: "SuperNode ID: " in deployment.log("node-0"), 120, "node-0")
        before = Traffic.now(tap)
        time.sleep(IDLE_SECONDS)
        after = Traffic.now(tap)
        deployment.run()
        deployment.rounds(1, 600)
        first = Traffic.now(tap)
        deployment.rounds(1 + rounds, 600)
        last = Traffic.now(tap)
        counted = deployment.metrics[1:]
    idle = (last.moment - first.moment) / (after.moment - before.moment)
    wire_up = last.up - first.up - idle * (after.up - before.up)
    wire_down = last.down - first.down - idle * (after.down - before.down)
    up = sum(metrics["up_bytes"] for metrics in counted)
    down = sum(metrics["down_bytes"] for metrics in counted)
    print(f"{up // rounds:>12,}{wire_up / up:>18.4f}{wire_down / down:>8.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", choices=["rounds", "bytes"])
    options = parser.parse_args()
    try:
        require_flower(simulation=True)
    except RequestError:
        print(f"Flower is not installed; to measure it: {INSTALL}")
        return
    if options.only != "bytes":
        compare_rounds(max(3, options.rounds))
    if options.only != "rounds":
        print(f"{'message':>12}{'wire / count up':>18}{'down':>8}")
        for width in (150, 500):
            with tempfile.TemporaryDirectory(prefix="fs") as name:
                compare_bytes(max(2, options.rounds), width, Path(name))


if __name__ == "__main__":
    main()
