"""What the local engine costs: FedAvg rounds by the engine against a bare PyTorch loop.

The bare loop does the same work with no engine, no messages, no checkpoint and no checks: for
each client copy the weights, train, average; then evaluate. Same data, same batches, same
arithmetic, one thread, in one process; the two alternate and the best of each counts, because the
machine is shared. The weights must agree at the end, or the comparison means nothing.

    python benchmarks/local_engine.py [--repeats 5]
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from random_experiment import random_experiment
from torch import Tensor

from fedstill.build import BuiltExperiment
from fedstill.engine.local import InProcess
from fedstill.federation import Federation
from fedstill.methods.fedavg import FedAvg
from fedstill.observe.observer import Observer
from fedstill.runs.folder import RunFolder
from fedstill.types import Params

CLIENTS, RECORDS, ROUNDS = 10, 2000, 2


def make_experiment() -> BuiltExperiment:
    return random_experiment(
        clients=CLIENTS,
        records=RECORDS,
        rounds=ROUNDS,
        method="fedavg",
        model="convnet-small",
        engine={"workers": 1},
    )


def with_engine(built: BuiltExperiment) -> tuple[Params, float]:
    with tempfile.TemporaryDirectory() as folder:
        federation = Federation(built, RunFolder(Path(folder) / "run"), Observer())
        begun = time.perf_counter()
        federation.begin()
        with InProcess(built) as engine:
            for _ in range(ROUNDS):
                federation.step(engine)
        return built.method.params(federation.state), time.perf_counter() - begun


def bare(built: BuiltExperiment) -> tuple[Params, float]:
    """The obvious program, chunked like ours so that both do the same arithmetic."""
    model, data, method = built.task.model, built.dataset, built.method
    assert isinstance(method, FedAvg)
    x_train, y_train = data.scaling(data.train.inputs), data.train.labels
    x_test, y_test = data.scaling(data.test.inputs), data.test.labels
    chunk = model.chunk
    indices = [built.partition.index(client) for client in range(CLIENTS)]
    begun = time.perf_counter()
    weights = model.init(built.rng.at("round", 0, "server").at("init").torch())
    for number in range(1, ROUNDS + 1):
        total: list[Tensor] = []
        for client in range(CLIENTS):
            local = {k: v.clone().requires_grad_(True) for k, v in weights.items()}
            rng = built.rng.at("round", number, "client", client)
            order = torch.randperm(len(indices[client]), generator=rng.at("order", 0).torch())
            for positions in order.split(method.batch_size):
                rows = indices[client][positions]
                gradient: list[Tensor] = []
                for part in rows.split(chunk):
                    logits = model.apply(local, x_train[part])
                    loss = torch.nn.functional.cross_entropy(logits, y_train[part], reduction="sum")
                    parts = torch.autograd.grad(
                        loss / len(rows),
                        list(local.values()),
                        allow_unused=True,
                        materialize_grads=True,
                    )
                    gradient = (
                        [a + b for a, b in zip(gradient, parts, strict=True)]
                        if gradient
                        else list(parts)
                    )
                with torch.no_grad():
                    for weight, step in zip(local.values(), gradient, strict=True):
                        weight.sub_(step, alpha=method.learning_rate)
            share = len(indices[client]) / RECORDS
            update = [(local[k].detach() - weights[k]) * share for k in weights]
            total = [a + b for a, b in zip(total, update, strict=True)] if total else update
        weights = {k: v + t for (k, v), t in zip(weights.items(), total, strict=True)}
        with torch.no_grad():
            for x, y in zip(x_test.split(chunk), y_test.split(chunk), strict=True):
                logits = model.apply(weights, x)
                (logits.argmax(1) == y).sum().item()
                torch.nn.functional.cross_entropy(logits, y, reduction="sum").item()
    return weights, time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    built = make_experiment()
    engine_seconds, bare_seconds = [], []
    for _ in range(repeats):
        ours, seconds = with_engine(built)
        engine_seconds.append(seconds)
        theirs, seconds = bare(built)
        bare_seconds.append(seconds)
        worst = max(float((ours[k] - theirs[k]).abs().max()) for k in ours)
        assert worst < 1e-3, f"not the same work: the weights differ by {worst}"
    a, b = min(engine_seconds) / ROUNDS, min(bare_seconds) / ROUNDS
    print(f"engine {a * 1000:.0f} ms per round, bare loop {b * 1000:.0f} ms per round")
    print(f"overhead {a / b - 1:+.1%} (best of {repeats}, {CLIENTS} clients, {RECORDS} images)")


if __name__ == "__main__":
    main()
