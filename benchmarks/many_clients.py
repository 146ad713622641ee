"""What many clients cost: FedAvg rounds here, in a bare PyTorch loop, and in apple/pfl-research.

Data of MNIST's form (random images of 28x28, 10 classes), ``convnet-small``, batches of 32, one
local epoch, SGD 0.05. Processor seconds of one round, without evaluation, one thread: the median of
the rounds after the first. Every measurement is a process of its own, and the contestants take
turns, because the machine is shared. ``pfl+`` has the pooling and the memory settings of this
project; both are skipped where ``pip install 'pfl[pytorch]'`` was not done. ``start`` is the
processor time from the call to the first round, of ours also on disk: what the run folder holds.
``paired`` is what ours takes beyond ``bare`` when both take turns within one process. ``other`` is
ours by another version's sources.

    python benchmarks/many_clients.py [--repeats 3] [--only 10000] [--other DIR/src]
"""

import argparse
import importlib.util
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fedstill
from fedstill.engine.memory import keep_freed_memory
from fedstill.models import MODELS
from fedstill.models.layers import POOLINGS
from fedstill.observe.observer import Observer
from fedstill.rng import Rng

BATCH, RATE, SCALING = 32, 0.05, (0.1307, 0.3081)
# Version 0.2.0, which ``--other`` may name, shows no progress from Python and has no such option.
QUIET: dict[str, Any] = (
    {"progress": False} if "progress" in signature(fedstill.run).parameters else {}
)


@dataclass(frozen=True)
class Size:
    clients: int
    sampled: int
    records: int  # of each client
    rounds: int


SIZES = (
    Size(100, 10, 600, 4),
    Size(1_000, 10, 60, 10),
    Size(10_000, 100, 6, 10),
    Size(100_000, 100, 6, 10),
)


def make_data(size: Size) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Images and labels; the last sizes are larger than MNIST."""
    draw = Rng(0).at("images").numpy()
    number = size.clients * size.records
    images = draw.integers(0, 256, (min(number, 60_000), 1, 28, 28), dtype="uint8")
    if number > len(images):
        images = np.resize(images, (number, 1, 28, 28))
    return images, draw.integers(0, 10, number)


def ours(size: Size) -> dict[str, float]:
    ends: list[float] = []

    class Clock(Observer):
        def round_started(self, number: int, clients: Any) -> None:
            if not ends:
                ends.append(time.process_time())

        def round_done(self, metrics: Any) -> None:
            ends.append(time.process_time())

    begun, stored = run(size, Clock())
    return {**measured(ends[:-1]), "start": ends[0] - begun, "folder_mb": stored / 1e6}


def paired(size: Size) -> dict[str, float]:
    """What ours takes beyond the bare loop, as its share: in one process, where ten clients of the
    one follow ten of the other. On a shared machine this is the steadiest number."""
    clients = bare_clients(size)
    next(clients)
    spent, rounds = {"ours": 0.0, "bare": 0.0}, []
    last = time.process_time()

    def done_by(name: str) -> None:
        nonlocal last
        now = time.process_time()
        spent[name] += now - last
        last = now

    class Clock(Observer):
        answered = 0

        def client_done(self, client: int, error: str | None) -> None:
            self.answered += 1
            if self.answered % 10 == 0:
                done_by("ours")
                for _ in range(10):
                    next(clients)
                done_by("bare")

        def round_done(self, metrics: Any) -> None:
            done_by("ours")
            rounds.append(dict(spent))
            spent.update(ours=0.0, bare=0.0)

    run(size, Clock())
    # The first round has the start in it, the last one the evaluation.
    rounds = rounds[1:-1]
    share = statistics.median(each["ours"] / each["bare"] - 1 for each in rounds)
    return {
        "ours_above_bare": share,
        "ours": statistics.median(each["ours"] for each in rounds),
        "bare": statistics.median(each["bare"] for each in rounds),
    }


def run(size: Size, observer: Observer) -> tuple[float, int]:
    """When a run of ours began, by the processor's clock, and the bytes of its folder."""
    images, labels = make_data(size)
    data = fedstill.arrays(images, labels, images[:1000], labels[:1000])
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        fedstill.run(
            os.environ.get("METHOD", "fedavg"),
            data=data,
            clients=size.clients,
            partition="iid",
            participation=size.sampled / size.clients,
            rounds=size.rounds,
            model="convnet-small",
            workers=1,
            out=Path(folder) / "run",
            observer=observer,
            **QUIET,
            set={
                "method.batch_size": BATCH,
                "method.learning_rate": RATE,
                "eval_every": size.rounds,
            },
        )
        stored = sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file())
    return begun, stored


def measured(ends: list[float]) -> dict[str, float]:
    """From the times at which rounds ended; the first begins at the first of them."""
    rounds = [after - before for before, after in itertools.pairwise(ends)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return {"round": statistics.median(rounds[1:]), "peak_mb": peak}


def scaled(images: np.ndarray[Any, Any]) -> Tensor:
    mean, std = SCALING
    return (torch.from_numpy(images).float() / 255 - mean) / std


def bare(size: Size) -> dict[str, float]:
    """The obvious loop: no messages, no checks, nothing on disk. The arithmetic alone."""
    keep_freed_memory()
    clients = bare_clients(size)
    ends = [time.process_time()]
    for _ in range(size.rounds):
        for _ in range(size.sampled):
            next(clients)
        ends.append(time.process_time())
    return measured(ends)


def bare_clients(size: Size) -> Iterator[None]:
    """The rounds of the obvious loop, one client at a time."""
    images, labels = make_data(size)
    x_all, y_all = torch.from_numpy(images), torch.from_numpy(labels)
    model = MODELS["convnet-small"].cls(shape=(1, 28, 28), classes=10, width=32)
    weights = model.init(Rng(0).torch())
    mean, std = SCALING
    for number in itertools.count():
        draw = np.random.default_rng(number)
        total = {k: torch.zeros_like(v) for k, v in weights.items()}
        for place, client in enumerate(draw.choice(size.clients, size.sampled, replace=False)):
            if place:
                yield
            local = {k: v.clone().requires_grad_(True) for k, v in weights.items()}
            rows = torch.randperm(size.records) + int(client) * size.records
            for batch in rows.split(BATCH):
                gradient = [torch.zeros_like(value) for value in local.values()]
                for part in batch.split(model.chunk):
                    logits = model.apply(local, (x_all[part].float() / 255 - mean) / std)
                    loss = nn.functional.cross_entropy(logits, y_all[part], reduction="sum")
                    parts = torch.autograd.grad(
                        loss / len(batch), list(local.values()), allow_unused=True,
                        materialize_grads=True,
                    )  # fmt: skip
                    for sum_so_far, part_of_it in zip(gradient, parts, strict=True):
                        sum_so_far += part_of_it
                with torch.no_grad():
                    for value, step in zip(local.values(), gradient, strict=True):
                        value -= RATE * step
            for key, value in local.items():
                total[key] += (value.detach() - weights[key]) / size.sampled
        weights = {k: v + total[k] for k, v in weights.items()}
        yield


class Network(nn.Module):
    """The same network as pfl wants it: with its loss."""

    def __init__(self, pool: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(1 if i == 0 else 32, 32, 3, padding=3 if i == 0 else 1) for i in range(3)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(32, 32) for _ in range(3))
        self.linear = nn.Linear(32 * 16, 10)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = self.pool(torch.relu(norm(conv(x))))
        out: Tensor = self.linear(x.flatten(1))
        return out

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {}


def in_pfl(size: Size, tuned: bool) -> dict[str, float]:
    # Untyped, and not installed where this is checked.
    import pfl.internal.ops.pytorch_ops  # type: ignore[import-not-found]  # noqa: F401
    from pfl.aggregate.simulate import SimulatedBackend  # type: ignore[import-not-found]
    from pfl.algorithm.base import NNAlgorithmParams  # type: ignore[import-not-found]
    from pfl.algorithm.federated_averaging import (  # type: ignore[import-not-found]
        FederatedAveraging,
    )
    from pfl.callback.base import TrainingProcessCallback  # type: ignore[import-not-found]
    from pfl.data.federated_dataset import FederatedDataset  # type: ignore[import-not-found]
    from pfl.data.pytorch import PyTorchTensorDataset  # type: ignore[import-not-found]
    from pfl.data.sampling import get_user_sampler  # type: ignore[import-not-found]
    from pfl.hyperparam.base import NNTrainHyperParams  # type: ignore[import-not-found]
    from pfl.metrics import Metrics  # type: ignore[import-not-found]
    from pfl.model.pytorch import PyTorchModel  # type: ignore[import-not-found]

    if tuned:
        keep_freed_memory()
    images, labels = make_data(size)
    x_all, y_all = torch.from_numpy(images), torch.from_numpy(labels)
    mean, std = SCALING

    def of(user: int) -> Any:
        rows = slice(user * size.records, (user + 1) * size.records)
        x = (x_all[rows].float() / 255 - mean) / std
        return PyTorchTensorDataset([x, y_all[rows]], user_id=str(user))

    sampler = get_user_sampler("random", list(range(size.clients)))
    users = FederatedDataset(of, sampler)
    pool = POOLINGS["average"] if tuned else nn.AvgPool2d(2)
    network = Network(pool)
    model = PyTorchModel(
        network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), 1.0),
    )
    ends: list[float] = [time.process_time()]

    class Clock(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, *_: Any, **__: Any) -> Any:
            ends.append(time.process_time())
            return False, Metrics()

    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=size.rounds,
            evaluation_frequency=size.rounds + 1,
            train_cohort_size=size.sampled,
            val_cohort_size=None,
        ),
        SimulatedBackend(users, None),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH),
        callbacks=[Clock()],
        send_metrics_to_platform=False,
    )
    return measured(ends)


CONTESTANTS: dict[str, Callable[[Size], dict[str, float]]] = {
    "ours": ours,
    "bare": bare,
    "paired": paired,
    "pfl": lambda size: in_pfl(size, tuned=False),
    "pfl+": lambda size: in_pfl(size, tuned=True),
}


def compare(repeats: int, only: int | None, other: Path | None) -> dict[str, float]:
    """What was measured, by contestant, number of clients and key."""
    names = [n for n in CONTESTANTS if "pfl" not in n or importlib.util.find_spec("pfl")]
    if len(names) < len(CONTESTANTS):
        print("pfl is not installed: its columns are left out")
    names += [] if other is None else ["other"]
    everything: dict[str, float] = {}
    for number, size in enumerate(SIZES):
        if only not in (None, size.clients):
            continue
        found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _ in range(repeats):
            for name in names:
                call = [sys.executable, __file__, "--one", name, str(number)]
                environment = {**os.environ, "OMP_NUM_THREADS": "1"}
                if name == "other":
                    call[3], environment["PYTHONPATH"] = "ours", str(other)
                done = subprocess.run(
                    call, capture_output=True, text=True, env=environment, check=False
                )
                if done.returncode:
                    raise SystemExit(done.stderr)
                found[name].append(json.loads(done.stdout.splitlines()[-1]))
        print(f"{size.clients:,} clients of {size.records} records, {size.sampled} per round")
        for name, runs in found.items():
            of_runs = statistics.median if name == "paired" else min
            best = {key: of_runs([run[key] for run in runs]) for key in runs[0]}
            print(f"  {name:5s} " + ", ".join(f"{key} {value:.3f}" for key, value in best.items()))
            everything |= {f"{name} {size.clients} {key}": value for key, value in best.items()}
    return everything


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", type=int)
    parser.add_argument("--one", nargs=2)
    parser.add_argument("--other", type=Path, help="sources of another version")
    parser.add_argument("--json", action="store_true", help="a last line for speed.py")
    asked = parser.parse_args()
    if asked.one:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        print(json.dumps(CONTESTANTS[asked.one[0]](SIZES[int(asked.one[1])])))
    else:
        rounds = compare(asked.repeats, asked.only, asked.other)
        if asked.json:
            print(json.dumps(rounds))
