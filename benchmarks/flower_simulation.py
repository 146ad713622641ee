"""Local FedAvg rounds: fedstill's engine against Flower's own simulation runtime.

Both train the same ConvNet (width 32) on the same random 28x28 images, with the same partition,
the same first weights and the same batches: one epoch of plain SGD in batches of 32 at every
client, an average weighted by records, an evaluation on the test split each round. Both have the
same number of worker processes, and one thread in each process. Flower runs as its users run it:
an app with an ordinary training loop, the built-in FedAvg strategy, `flwr run`. The weights must
agree at the end, or the comparison means nothing.

A round is the time from one evaluation to the next; the first round, in which the workers warm
up, counts as start-up. The two alternate and the best round of each counts, because machines are
shared.

Two things differ: the engine, and the code of the training step (fedstill's works through a batch
in chunks that fit the cache). To tell one from the other, Flower runs a second time with
fedstill's training step in its clients.

    pip install 'flwr[simulation]>=1.41,<1.43'
    python benchmarks/flower_simulation.py [--turns 2] [--rounds 6] [--workers 2]
"""

import argparse
import importlib.util
import json
import math
import multiprocessing
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedstill.build import BuiltExperiment, build
from fedstill.data import Dataset, Partition, Scaling, Split
from fedstill.engine.flower.supervisor import processes_of
from fedstill.engine.local import local_engine
from fedstill.federation import Federation
from fedstill.observe.observer import Observer
from fedstill.rng import Rng
from fedstill.runs.folder import RunFolder
from fedstill.types import Params

CLIENTS, RECORDS, TEST, WIDTH = 10, 4000, 1000, 32
BATCH, LEARNING_RATE = 32, 0.05
TIMEOUT = 600.0  # seconds that one side may take in one turn
INSTALL = "pip install 'flwr[simulation]>=1.41,<1.43'"

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedavg-app"
version = "1.0.0"
description = "FedAvg with an ordinary training loop."
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "benchmark"

[tool.flwr.app.components]
serverapp = "fedavg_app.server:app"
clientapp = "fedavg_app.client:app"

[tool.flwr.app.config]
folder = ""
step = "plain"
"""

TASK = '''\
"""The network and the data, for both sides."""

import json
from collections import OrderedDict
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import nn


class ConvNet(nn.Module):
    """Three blocks of convolution, instance norm, ReLU and average pooling; one linear layer."""

    def __init__(self, width):
        super().__init__()
        for number, (channels, padding) in enumerate([(1, 3), (width, 1), (width, 1)]):
            block = OrderedDict(
                conv=nn.Conv2d(channels, width, 3, padding=padding),
                norm=nn.GroupNorm(width, width),
                relu=nn.ReLU(),
                pool=nn.AvgPool2d(2),
            )
            self.add_module(f"block{number}", nn.Sequential(block))
        self.linear = nn.Linear(width * 4 * 4, 10)

    def forward(self, x):
        x = self.block2(self.block1(self.block0(x)))
        return self.linear(x.flatten(1))


@lru_cache(maxsize=1)
def load(folder):
    """Settings and data, read once in every process; the images are scaled once, too."""
    settings = json.loads((Path(folder) / "settings.json").read_text())
    with np.load(Path(folder) / "data.npz") as archive:
        data = {name: torch.from_numpy(archive[name]) for name in archive.files}
    for name in ("x_train", "x_test"):
        data[name] = (data[name].float() / 255 - settings["mean"]) / settings["std"]
    return settings, data
'''

CLIENT = '''\
"""One client: an epoch of SGD on its own records."""

import time

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedavg_app.task import ConvNet, load

app = ClientApp()


def plain(settings, weights, batches):
    """The ordinary loop."""
    model = ConvNet(settings["width"])
    model.load_state_dict(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings["learning_rate"])
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.state_dict()


def fedstill(settings, weights, batches):
    """The same with the network and the gradient of fedstill."""
    from fedstill.data import Scaling
    from fedstill.models import ConvNet
    from fedstill.steps.gradient import batch_gradient, tracked
    from fedstill.types import Task

    model = ConvNet((1, 28, 28), 10, width=settings["width"])
    task = Task(model, model.shape, 10, clients=1, rounds=1, scaling=Scaling((), ()))
    weights = tracked(weights)
    for x, y in batches:
        gradient, _ = batch_gradient(task, weights, x, y)
        with torch.no_grad():
            for weight, change in zip(weights.values(), gradient):
                weight.sub_(change, alpha=settings["learning_rate"])
    return {name: weight.detach() for name, weight in weights.items()}


@app.train()
def train(message, context):
    torch.set_num_threads(1)
    settings, data = load(context.run_config["folder"])
    client = int(context.node_config["partition-id"])
    number = int(message.content["config"]["server-round"])
    begun = time.perf_counter()
    rows = torch.nonzero(data["owner"] == client).flatten()
    rows = rows[data["order"][number - 1, client]]
    batches = ((data["x_train"][b], data["y_train"][b]) for b in rows.split(settings["batch"]))
    step = fedstill if context.run_config["step"] == "fedstill" else plain
    weights = step(settings, message.content["arrays"].to_torch_state_dict(), batches)
    metrics = {"num-examples": len(rows), "seconds": time.perf_counter() - begun}
    content = RecordDict({"arrays": ArrayRecord(weights), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=message)
'''

SERVER = '''\
"""The server: the built-in FedAvg, and an evaluation on the test split after every round."""

import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fedavg_app.task import ConvNet, load

app = ServerApp()


@app.main()
def main(grid, context):
    torch.set_num_threads(1)
    folder = context.run_config["folder"]
    settings, data = load(folder)
    model = ConvNet(settings["width"])
    with np.load(Path(folder) / "first_weights.npz") as archive:
        model.load_state_dict({name: torch.from_numpy(archive[name]) for name in archive.files})
    ends = []

    @torch.no_grad()
    def evaluate(number, arrays):
        model.load_state_dict(arrays.to_torch_state_dict())
        right, loss = 0, 0.0
        for x, y in zip(data["x_test"].split(128), data["y_test"].split(128)):
            logits = model(x)
            right += int((logits.argmax(1) == y).sum())
            loss += float(F.cross_entropy(logits, y, reduction="sum"))
        if number:
            ends.append(time.time())
        total = len(data["y_test"])
        return MetricRecord({"accuracy": right / total, "loss": loss / total})

    clients = settings["clients"]
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=settings["rounds"],
        timeout=settings["timeout"],
        evaluate_fn=evaluate,
    )
    weights = {name: value.numpy() for name, value in result.arrays.to_torch_state_dict().items()}
    np.savez(Path(folder) / "weights.npz", **weights)
    training = [m["seconds"] * clients for m in result.train_metrics_clientapp.values()]
    times = {"ends": ends, "training": training}
    (Path(folder) / "times.json").write_text(json.dumps(times))
'''

Weights = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Measured:
    """One turn of one side: its begin, the end of each round, and the result."""

    begun: float
    ends: list[float]
    weights: Weights
    training: tuple[float, ...] = ()  # seconds per round of all clients together

    @property
    def rounds(self) -> list[float]:
        """Seconds of every round after the first."""
        return [b - a for a, b in zip(self.ends, self.ends[1:], strict=False)]

    @property
    def start_up(self) -> float:
        """How much longer the first round took than the others, from the first command on."""
        return self.ends[0] - self.begun - statistics.median(self.rounds)


def make_experiment(rounds: int, workers: int) -> BuiltExperiment:
    draw = Rng(0).at("images").numpy()

    def split(records: int) -> Split:
        images = torch.from_numpy(draw.integers(0, 256, (records, 1, 28, 28), dtype="uint8"))
        return Split(images, torch.from_numpy(draw.integers(0, 10, records)))

    names = tuple(str(i) for i in range(10))
    data = Dataset("random", split(RECORDS), split(TEST), names, Scaling((0.5,), (0.25,)), "")
    request = {
        "method": {"name": "fedavg", "batch_size": BATCH, "learning_rate": LEARNING_RATE},
        "model": {"name": "convnet", "width": WIDTH},
        "rounds": rounds,
        "engine": {"workers": workers},
    }
    owner = (torch.arange(RECORDS) % CLIENTS).int()
    return build(request, dataset=data, partition=Partition(owner, CLIENTS))


# --- fedstill ------------------------------------------------------------------------------------


class _Clock(Observer):
    def __init__(self) -> None:
        self.ends: list[float] = []

    def round_done(self, metrics: object) -> None:
        self.ends.append(time.time())


def fedstill_process(folder: Path, rounds: int, workers: int) -> None:
    """The whole of fedstill's side, in a separate process: its imports are part of the start-up."""
    built = make_experiment(rounds, workers)
    torch.set_num_threads(1)
    clock = _Clock()
    federation = Federation(built, RunFolder(folder / "run"), clock)
    federation.begin()
    with local_engine(built, folder / "workers") as engine:
        for _ in range(rounds):
            federation.step(engine)
    save_weights(folder / "weights.npz", built.method.params(federation.state))
    (folder / "times.json").write_text(json.dumps({"ends": clock.ends}))


def with_fedstill(rounds: int, workers: int) -> Measured:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begun = time.time()
        spawn = multiprocessing.get_context("spawn")
        process = spawn.Process(target=fedstill_process, args=(folder, rounds, workers))
        process.start()
        try:
            process.join(TIMEOUT)
        finally:
            process.kill()  # its workers end with it
            process.join()
        return read_back(folder, begun, rounds, f"fedstill ended with code {process.exitcode}")


# --- Flower --------------------------------------------------------------------------------------


def find_flower() -> Path | None:
    """The folder of Flower's commands, if it is in this environment with its simulation."""
    programs = Path(sys.executable).parent
    search = os.pathsep.join([str(programs), os.environ.get("PATH", "")])
    found = shutil.which("flwr", path=search)
    whole = all(importlib.util.find_spec(name) is not None for name in ("flwr", "ray"))
    return Path(found).parent if found is not None and whole else None


def with_flower(commands: Path, rounds: int, workers: int, step: str) -> Measured:
    with tempfile.TemporaryDirectory(prefix="fl", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        write_app(folder / "app")
        write_task(folder, make_experiment(rounds, workers))
        port, control = free_ports(2)
        home = folder / "home"
        home.mkdir()
        address = f'[superlink.bench]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        (home / "config.toml").write_text(address)
        environment = flower_environment(commands, folder, home)
        run = [
            *(str(commands / "flwr"), "run", str(folder / "app"), "bench", "--stream"),
            *("--run-config", f'folder="{folder}" step="{step}"'),
            "--federation-config",
            f"num-supernodes={CLIENTS} client-resources-num-cpus=1 init-args-num-cpus={workers}",
        ]
        link = [
            *(str(commands / "flower-superlink"), "--insecure", "--simulation"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--control-api-address", f"127.0.0.1:{control}"),
        ]
        log = folder / "flower.log"
        begun = time.time()
        try:
            with (
                background(link, environment, folder / "superlink.log") as superlink,
                suppress(subprocess.TimeoutExpired),
            ):
                wait_for(port, superlink)
                with background(run, environment, log) as process:
                    process.wait(TIMEOUT)
        finally:
            end_all(folder)
        output = log.read_text(errors="replace")[-3000:] if log.exists() else "no answer"
        return read_back(folder, begun, rounds, f"Flower failed:\n{output}")


def write_app(folder: Path) -> None:
    package = folder / "fedavg_app"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").write_text("")
    for name, text in {"task": TASK, "client": CLIENT, "server": SERVER}.items():
        (package / f"{name}.py").write_text(text)


def write_task(folder: Path, built: BuiltExperiment) -> None:
    """The same task as files: data, owners, first weights, the order of the records."""
    data, rounds = built.dataset, built.experiment.rounds
    sizes = built.partition.sizes.tolist()

    def order(number: int, client: int) -> torch.Tensor:
        rng = built.rng.at("round", number, "client", client)
        return torch.randperm(sizes[client], generator=rng.at("order", 0).torch())

    orders = [[order(n, c) for c in range(CLIENTS)] for n in range(1, rounds + 1)]
    np.savez(
        folder / "data.npz",
        x_train=data.train.inputs.numpy(),
        y_train=data.train.labels.numpy(),
        x_test=data.test.inputs.numpy(),
        y_test=data.test.labels.numpy(),
        owner=built.partition.owner.numpy(),
        order=torch.stack([torch.stack(row) for row in orders]).numpy(),
    )
    save_weights(folder / "first_weights.npz", first_weights(built))
    settings = {
        "clients": CLIENTS,
        "rounds": rounds,
        "width": WIDTH,
        "batch": BATCH,
        "learning_rate": LEARNING_RATE,
        "mean": data.scaling.mean[0],
        "std": data.scaling.std[0],
        "timeout": TIMEOUT,
    }
    (folder / "settings.json").write_text(json.dumps(settings))


def first_weights(built: BuiltExperiment) -> Params:
    return built.task.model.init(built.rng.at("round", 0, "server").at("init").torch())


def flower_environment(commands: Path, folder: Path, home: Path) -> dict[str, str]:
    """Everything stays in our folder, no telemetry is sent, and the priority is ours."""
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(commands), os.environ.get("PATH", "")]),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # the same priority as ours; Ray would add 15
    }
    if sys.platform == "linux":  # elsewhere the path would be too long for Ray's sockets
        environment["RAY_TMPDIR"] = str(folder)
    return environment


def free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)


@contextmanager
def background(
    command: list[str], environment: dict[str, str], log: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """A command that ends with the block, together with its process group."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def end_all(folder: Path, grace: float = 10.0) -> None:
    """End what left the process group: Ray's servers, its agents and actors."""
    deadline = time.monotonic() + grace
    while left := processes_of(folder):
        if time.monotonic() > deadline:
            for number in left:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
        if time.monotonic() > deadline + grace:
            print(f"still running: {left}", file=sys.stderr)
            return
        time.sleep(0.2)


# --- both ----------------------------------------------------------------------------------------


def save_weights(path: Path, params: Params) -> None:
    arrays: dict[str, Any] = {name: value.numpy() for name, value in params.items()}
    np.savez(path, **arrays)


def read_back(folder: Path, begun: float, rounds: int, complaint: str) -> Measured:
    try:
        times = json.loads((folder / "times.json").read_text())
        with np.load(folder / "weights.npz") as archive:
            weights = {name: archive[name] for name in archive.files}
    except OSError:
        raise SystemExit(complaint) from None
    if len(times["ends"]) != rounds:
        raise SystemExit(f"{complaint}\n{len(times['ends'])} of {rounds} rounds were measured")
    return Measured(begun, times["ends"], weights, tuple(times.get("training", ())))


def check_same(first: Weights, ours: Weights, theirs: Weights) -> float:
    """The distance of the results, relative to the distance from the first weights.

    Rounding differs, and where it flips a ReLU, training amplifies it: to 8% in five rounds,
    though in double precision the two steps agree to 14 digits. Another order of the records
    gives 37%, a learning rate of 0.045 gives 20%.
    """

    def distance(a: Weights, b: Weights) -> float:
        return math.sqrt(sum(float(np.square(a[name] - b[name]).sum()) for name in first))

    apart = distance(ours, theirs) / distance(ours, first)
    if not apart < 0.15:
        raise SystemExit(f"not the same work: the weights are {apart:.1%} apart")
    return apart


@dataclass(frozen=True)
class Side:
    """All turns of one side."""

    name: str
    turns: list[Measured]

    @property
    def rounds(self) -> list[float]:
        return [seconds for turn in self.turns for seconds in turn.rounds]

    @property
    def line(self) -> str:
        start = min(turn.start_up for turn in self.turns)
        middle = statistics.median(self.rounds)
        return f"{self.name:<34}{min(self.rounds):8.2f} {middle:8.2f} {start:9.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6, help="per turn, the first not counted")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    commands = find_flower()
    if commands is None:
        print(f"Flower's simulation is not installed; to measure against it: {INSTALL}")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is ended
    rounds, workers = max(3, options.rounds), options.workers
    fedstill = Side("fedstill", [])
    plain = Side("Flower", [])
    same = Side("Flower with fedstill's training", [])
    for _ in range(max(1, options.turns)):
        plain.turns.append(with_flower(commands, rounds, workers, "plain"))
        fedstill.turns.append(with_fedstill(rounds, workers))
        same.turns.append(with_flower(commands, rounds, workers, "fedstill"))
    first = {k: v.numpy() for k, v in first_weights(make_experiment(rounds, workers)).items()}
    ours = fedstill.turns[0].weights
    apart = max(check_same(first, ours, turn.weights) for turn in plain.turns + same.turns)
    print(f"{CLIENTS} clients, {RECORDS} images, ConvNet {WIDTH}, {workers} workers")
    print(f"{len(fedstill.rounds)} rounds of each; results {apart:.2%} apart\n")
    print(f"{'seconds':<34}{'best':>8} {'median':>8} {'start-up':>9}")
    for side in (fedstill, plain, same):
        print(side.line)
    print()
    for side in (plain, same):
        ratio = min(side.rounds) / min(fedstill.rounds)
        training = min(s for turn in side.turns for s in turn.training[1:]) / workers
        print(f"{side.name}: {ratio:.2f} x fedstill's round ({training:.2f} s of it training)")


if __name__ == "__main__":
    main()
