"""What the road costs: the same rounds on the local engine, on Flower's simulation, deployed.

FedDM on the built-in digits with 10 clients, the same experiment three times; the models must
agree to the bit, or the comparison means nothing. A deployment is a SuperLink and ten SuperNodes
as processes of this machine; Flower starts a process for every message, and that process imports
PyTorch, so most of its overhead is there and is shared by fewer cores here than in the field.

Then the bytes on the wire: what really went through a node's connection (no TLS, so that the
count is of the contents), against what fedstill counts. A run of one round is subtracted from a
run of several, so that what is sent once (the app, the introduction) is not in it, and a SuperNode
that has nothing to do is listened to as well, for it asks for work all the time.

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
from fedstill.record import RunFolder

CLIENTS = 10


def seconds_of(folder: Path) -> list[float]:
    """Every round but the first, in which processes warm up."""
    return [metrics.seconds for metrics in RunFolder(folder).read_metrics()][1:]


def on_this_machine(engine: str, rounds: int, folder: Path) -> list[float]:
    fedstill.run("feddm", clients=CLIENTS, rounds=rounds, engine=engine, workers=2, out=folder)
    return seconds_of(folder)


def deployed(rounds: int, folder: Path) -> list[float]:
    words = ["feddm", "--clients", str(CLIENTS), "--rounds", str(rounds)]
    with Deployment(folder, *words, secure=False) as deployment:
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
    print(f"{'seconds a round':<18}{'best':>8}{'median':>8}{'overhead':>10}")
    for engine, seconds in measured.items():
        middle = statistics.median(seconds)
        print(f"{engine:<18}{min(seconds):>8.2f}{middle:>8.2f}{middle - base:>10.2f}")


@dataclass(frozen=True)
class Bytes:
    """Of one run: on the wire, by our count, and how long it took."""

    wire_up: int
    wire_down: int
    up: int
    down: int
    seconds: float


def bytes_of(rounds: int, width: int, folder: Path) -> Bytes:
    words = ["fedavg", "--clients", "1", "--partition", "iid", "--rounds", str(rounds)]
    words += ["--model", "mlp", "--set", f"model.width={width}"]
    with Deployment(folder, *words, secure=False) as deployment:
        tap = Tap(deployment.port)
        deployment.start_node(0, port=tap.port)
        begun = time.monotonic()
        deployment.run()
        deployment.finished(1200)
        return Bytes(
            len(tap.up),
            len(tap.down),
            sum(metrics["up_bytes"] for metrics in deployment.metrics),
            sum(metrics["down_bytes"] for metrics in deployment.metrics),
            time.monotonic() - begun,
        )


def idle_rate(folder: Path) -> tuple[float, float]:
    """Bytes a second, up and down, of a node that nobody asks anything."""
    with Deployment(folder, "fedavg", "--clients", "1", secure=False) as deployment:
        tap = Tap(deployment.port)
        deployment.start_node(0, port=tap.port)
        time.sleep(15)
        up, down = len(tap.up), len(tap.down)
        time.sleep(20)
        return (len(tap.up) - up) / 20, (len(tap.down) - down) / 20


def compare_bytes(rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="fs") as name:
        folder = Path(name)
        (folder / "idle").mkdir()
        idle_up, idle_down = idle_rate(folder / "idle")
        print(f"an idle node: {idle_up:.0f} bytes a second up, {idle_down:.0f} down")
        print(f"{'message':>12}{'wire / count up':>18}{'down':>8}")
        for width in (150, 500, 2000):
            runs = []
            for number in (1, 1 + rounds):
                place = folder / f"{width}-{number}"
                place.mkdir()
                runs.append(bytes_of(number, width, place))
            one, several = runs
            seconds, up = several.seconds - one.seconds, several.up - one.up
            wire_up = several.wire_up - one.wire_up - idle_up * seconds
            wire_down = several.wire_down - one.wire_down - idle_down * seconds
            ratio_down = wire_down / (several.down - one.down)
            print(f"{up // rounds:>12,}{wire_up / up:>18.4f}{ratio_down:>8.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", choices=["rounds", "bytes"])
    wish = parser.parse_args()
    try:
        require_flower(simulation=True)
    except RequestError:
        print(f"Flower is not installed; to measure it: {INSTALL}")
        return
    if wish.only != "bytes":
        compare_rounds(max(3, wish.rounds))
    if wish.only != "rounds":
        compare_bytes(max(2, wish.rounds))


if __name__ == "__main__":
    main()
