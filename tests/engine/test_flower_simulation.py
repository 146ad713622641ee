"""Flower's simulation runtime gives the bits of the local engine, for every method.

One start of the simulation (15 s on an idle machine) serves all methods.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedstill[flower]'")
pytest.importorskip("ray", reason="needs the extra: pip install 'fedstill[flower]'")

from fedstill.build import BuiltExperiment, build
from fedstill.data import Partition
from fedstill.engine.flower.simulation import Simulation, SimulationEngine
from fedstill.engine.flower.supervisor import processes_of
from fedstill.engine.local import InProcess
from fedstill.federation import Federation
from fedstill.methods import METHODS
from fedstill.methods.fedavg import FedAvg
from fedstill.methods.feddm import FedDM
from fedstill.observe.observer import Observer
from fedstill.runs.folder import RunFolder
from fedstill.testing import bits, toy_data
from tests.engine.deployment import TIMEOUT_FACTOR
from tests.methods.small import SMALL

pytestmark = pytest.mark.slow
shared = pytest.mark.xdist_group("simulation")  # one process, and so one simulation

CLIENTS = 3


@pytest.fixture(scope="module")
def simulation() -> Iterator[Simulation]:
    with Simulation(CLIENTS, workers=1) as running:
        yield running
    assert not running.folder.exists()
    assert not processes_of(running.folder)


def named_experiment(method: str, rounds: int = 2, **settings: Any) -> BuiltExperiment:
    """The toy problem of the conformance suite, by names, so that other processes can build it."""
    data = toy_data()
    owner = (data.train.labels // 2).clamp(max=CLIENTS - 1).int()
    features = "model" in METHODS[method].DEFAULTS
    convnet = {"name": "convnet", "width": 4}
    request = {
        "method": {"name": method, **SMALL.get(method, {})},
        "model": {"feature_map": "orientation"} if features else convnet,
        "rounds": rounds,
        "engine": {"name": "flower", "workers": 1},
        **settings,
    }
    pooled = METHODS[method].pooled
    partition = Partition(torch.zeros_like(owner), 1) if pooled else Partition(owner, CLIENTS)
    return build(request, dataset=data, partition=partition)


def run_with(built: BuiltExperiment, folder: Path, engine: Any) -> Federation:
    federation = Federation(built, RunFolder(folder), Observer())
    federation.begin()
    with engine as running:
        while federation.round < built.experiment.rounds:
            federation.step(running)
    federation.folder.write_model(built.method.params(federation.state), {})
    return federation


START = {"start": {"name": "sketch", **SMALL["sketch"]}}


@shared
@pytest.mark.parametrize(
    ("method", "settings"), [*((method, {}) for method in METHODS), ("feddm", START)]
)
def test_same_bits_as_the_local_engine(
    method: str, settings: dict[str, Any], simulation: Simulation, tmp_path: Path
) -> None:
    built = named_experiment(method, **settings)
    local = run_with(built, tmp_path / "local", InProcess(built))
    engine = SimulationEngine(built, tmp_path / "flower" / ".workers", simulation)
    flower = run_with(built, tmp_path / "flower", engine)
    assert not any(metrics.failed for metrics in flower.history)
    assert bits(local.state) == bits(flower.state)
    model = (tmp_path / "flower" / "model.safetensors").read_bytes()
    assert model == (tmp_path / "local" / "model.safetensors").read_bytes()
    assert [m.up_bytes for m in local.history] == [m.up_bytes for m in flower.history]
    assert [m.down_bytes for m in local.history] == [m.down_bytes for m in flower.history]


@shared
def test_a_client_that_raises_costs_its_round_a_reply_and_no_more(
    simulation: Simulation, tmp_path: Path
) -> None:
    built = named_experiment("feddm", rounds=1, quorum=0.6)
    broken = {"name": "tests.engine.test_flower_simulation:Broken", **SMALL["feddm"]}
    request = {**built.experiment.table, "method": broken}
    built = build(request, dataset=built.dataset, partition=built.partition)
    engine = SimulationEngine(built, tmp_path / "run" / ".workers", simulation)
    federation = run_with(built, tmp_path / "run", engine)
    (metrics,) = federation.history
    assert metrics.clients == [0, 2]
    assert metrics.failed == {1: "ValueError: out of order"}
    assert "raise ValueError" in (tmp_path / "run" / "errors.log").read_text()


@dataclass(frozen=True)
class Broken(FedDM):
    """Client 1 fails."""

    def client(self, ctx: Any, message: Any, state: Any) -> Any:
        if ctx.client == 1:
            raise ValueError("out of order")
        return super().client(ctx, message, state)


@dataclass(frozen=True)
class Lossy(FedAvg):
    """Three in ten answers are lost."""

    def client(self, ctx: Any, message: Any, state: Any) -> Any:
        # A stream in which no round loses all three: below the quorum a run stops.
        if ctx.rng.at("lost", 1).numpy().random() < 0.3:
            raise ConnectionError("lost")
        return super().client(ctx, message, state)


@shared
def test_answers_lost_at_random_cost_little_accuracy_and_no_memory(
    simulation: Simulation, tmp_path: Path
) -> None:
    built = digits_experiment("fedavg")
    whole = run_with(built, tmp_path / "whole", InProcess(built)).history[-1]
    built = digits_experiment("tests.engine.test_flower_simulation:Lossy")
    federation = Federation(built, RunFolder(tmp_path / "lossy"), Observer())
    federation.begin()
    memory: list[int] = []
    with SimulationEngine(built, tmp_path / "lossy" / ".workers", simulation) as engine:
        while federation.round < 20:
            federation.step(engine)
            memory.append(sum(resident(n) for n in processes_of(simulation.folder)))
    lost = sum(len(metrics.failed) for metrics in federation.history)
    assert lost == 16  # of 60
    assert whole.accuracy is not None
    assert federation.history[-1].accuracy is not None
    assert whole.accuracy > 0.8
    assert abs(whole.accuracy - federation.history[-1].accuracy) < 0.05
    assert memory[-1] < 1.05 * memory[4], memory


def digits_experiment(method: str) -> BuiltExperiment:
    """All the built-in digits, partitioned evenly over three clients, for twenty rounds."""
    return build(
        {
            "method": method,
            "model": {"name": "mlp", "width": 32},
            "clients": CLIENTS,
            "partition": "iid",
            "rounds": 20,
            "quorum": 0.3,
            "engine": {"name": "flower", "workers": 1},
        }
    )


def resident(process: int) -> int:
    """Bytes of memory that a process holds; 0 for one that has just ended."""
    with suppress(OSError):
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


COMMAND = [
    *(sys.executable, "-m", "fedstill", "run", "scaffold", "--model", "mlp", "--clients", "3"),
    *("--participation", "0.7", "--rounds", "30", "--set", "model.width=16"),
]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder for temporary files; its name must be short, because of Ray."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as name:
        yield Path(name)


def test_the_command_killed_and_resumed_ends_with_the_local_bits(
    tmp_path: Path, short_folder: Path
) -> None:
    """Also: whatever kills the command, nothing of Flower or Ray stays behind."""
    flower = [*COMMAND, "--engine", "flower", "--out", "flower"]
    environment = {**os.environ, "TMPDIR": str(short_folder)}
    process = subprocess.Popen(flower, cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
    metrics = tmp_path / "flower" / "metrics.jsonl"
    deadline = time.monotonic() + 240 * TIMEOUT_FACTOR
    while not (metrics.exists() and metrics.read_text().count("\n") >= 2):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    while left := [n for folder in short_folder.glob("fs*") for n in processes_of(folder)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.5)
    resumed = subprocess.run(
        [*flower, "--resume"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        timeout=300 * TIMEOUT_FACTOR,
    )
    assert resumed.returncode == 0, resumed.stderr.decode()
    assert "resumed after round" in resumed.stderr.decode()
    local = subprocess.run([*COMMAND, "--out", "local"], cwd=tmp_path, capture_output=True)
    assert local.returncode == 0, local.stderr.decode()
    model = (tmp_path / "flower" / "model.safetensors").read_bytes()
    assert model == (tmp_path / "local" / "model.safetensors").read_bytes()
    assert not list(short_folder.glob("fs*"))
