"""The node's side: which client it is, where its records are, and what never leaves it.

A node's configuration decides all of that, never a message from the server:

    partition-id = 2                 which client this is, counting from 0
    data = "/srv/records"            its own records; without it, its share of the experiment's data
    data-dir = "/srv/datasets"       where the experiment's data are on this machine
    folder = "/var/lib/fedstill"     where the node keeps what must survive: its client's state
    device = "cuda"                  where it computes, if not where the experiment says
    epsilon = 3.0                    its own privacy budget, for all answers together
    delta = 1e-5                     of that budget
    classes = "declared"             with a budget: it may reveal which classes it holds

A client's state never leaves its node. The server gets the state's SHA-256 and sends it back with
the next work, so that a resumed run, or a refused reply, finds the state that belongs to it.

With privacy on, the node also keeps the ledger of accesses to its records. The ledger belongs to
the client, not to the experiment: whoever asks, and however often the server starts again, accesses
add up, and none is made beyond the smaller of the experiment's budget and the node's own.
"""

import dataclasses
import hashlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from fedstill.build import BuiltExperiment, assemble, build_resolved
from fedstill.config.nested import Table, merged, read_toml
from fedstill.config.resolve import resolve_with_method
from fedstill.data import SOURCES, Dataset, Partition, Scaling, load_node_data
from fedstill.engine.base import Answer, Work
from fedstill.engine.flower.description import Description, read_description
from fedstill.engine.handover import rebuild
from fedstill.engine.memory import keep_freed_memory
from fedstill.engine.threads import threads
from fedstill.errors import RequestError, RunError
from fedstill.files import write_atomically
from fedstill.privacy.settings import DELTA, PrivacySettings
from fedstill.version import VERSION

NodeConfig = Mapping[str, Any]

# Set by the process that starts a simulation: a folder with its experiments. A node of a deployment
# has no such variable, and no message can make it read files.
SIMULATION = "FEDSTILL_SIMULATION"
RELAY_SOCKET = "relay"  # in that folder
KEY_BYTES = 32  # of what the server keeps instead of a state


@dataclass(frozen=True)
class Node:
    """One client on its node.

    ``folder`` is the client's and outlives an experiment: the privacy ledger that ``built.runner``
    keeps is there. ``experiment`` names the experiment's folder in it.
    """

    client: int
    built: BuiltExperiment
    folder: Path
    experiment: str

    def answer(self, work: Work, progress: Callable[[int, int], None]) -> Answer:
        """The client's turn, with the state that this node kept for it."""
        if work.client != self.client:
            return Answer(work.client, error=f"this node is client {self.client}")
        states = States(self.folder / self.experiment)
        try:
            state = None if work.state is None else states.read(work.state)
        except RunError as error:
            return Answer(work.client, error=str(error))
        with threads(self.built.experiment.engine.threads):
            answer = self.built.runner.answer(dataclasses.replace(work, state=state), progress)
        if answer.state is None:
            return answer
        return dataclasses.replace(answer, state=states.keep(answer.state, work.state))


class States:
    """A client's states by their SHA-256: the one the server refers to, and the newest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, key: bytes) -> bytes:
        """The state that has this key."""
        path = self._path(key)
        try:
            state = path.read_bytes()
        except OSError:
            raise RunError(f"this node has no state {path.stem[:12]} of its client") from None
        if _digest(state) != key:
            raise RunError(f"{path}: the client's state is damaged")
        return state

    def keep(self, state: bytes, before: bytes | None) -> bytes:
        """Keep a state and the one it came from; its key."""
        key = _digest(state)
        write_atomically(self._path(key), state)
        needed = {self._path(key), *([self._path(before)] if before else [])}
        for path in self._folder.glob("*.safetensors"):
            if path not in needed:
                path.unlink(missing_ok=True)
        return key

    def _path(self, key: bytes) -> Path:
        return self._folder / f"{key.hex()}.safetensors"


def node_for(text: str, config: NodeConfig) -> Node:
    """This node in the experiment that ``text`` describes."""
    return _node_for(text, tuple(sorted(config.items())))


@lru_cache(maxsize=4)  # a simulated node serves many clients, and building one reads the data
def _node_for(text: str, items: tuple[tuple[str, Any], ...]) -> Node:
    keep_freed_memory()
    config = dict(items)
    description = read_description(text)
    if description.version != VERSION:
        raise RequestError(
            f"this node has fedstill {VERSION}, the server {description.version}; "
            "install the same version"
        )
    client = _client(config, description.clients)
    if simulation := os.environ.get(SIMULATION):
        built, folder = _simulated(simulated_file(Path(simulation), text))
    else:
        built = _deployed(description, client, config)
        folder = Path(config.get("folder") or _default_folder()).expanduser()
    kept = folder / f"client-{client:05d}"
    if not simulation:
        built = _within_budget(built, config, kept / "ledger")
    return Node(client, built, kept, description.experiment_sha256[:16])


def _within_budget(built: BuiltExperiment, config: NodeConfig, ledgers: Path) -> BuiltExperiment:
    """The experiment behind the private door, if it has one and the node's budget allows it."""
    epsilon, delta = config.get("epsilon"), float(config.get("delta", DELTA))
    settings = built.experiment.privacy
    if settings is None:
        if epsilon is not None:
            raise RequestError(
                f"this node has a privacy budget (epsilon = {epsilon:g}) and the experiment has no "
                "[privacy]: it gives no access to its records"
            )
        return built
    if epsilon is not None:
        if complaint := _complaint(settings, delta, config.get("classes") == "declared"):
            raise RequestError(f"this node has a privacy budget, and the experiment's {complaint}")
        asked = float(epsilon) if settings.epsilon is None else settings.epsilon
        limited = dataclasses.replace(settings, epsilon=min(float(epsilon), asked))
        experiment = dataclasses.replace(built.experiment, privacy=limited)
        built = dataclasses.replace(built, experiment=experiment)
    return built.planned().with_ledgers(ledgers)


def simulated_file(simulation: Path, text: str) -> Path:
    """Where a simulation puts the experiment that ``text`` describes."""
    return simulation / f"{_digest(text.encode()).hex()}.toml"


@lru_cache(maxsize=1)
def _simulated(file: Path) -> tuple[BuiltExperiment, Path]:
    """One experiment for all clients that this process simulates, and where their files go."""
    header = read_toml(file)
    sys.path[:] = header["path"]
    return rebuild(header), Path(header["nodes"])


def _deployed(description: Description, client: int, config: NodeConfig) -> BuiltExperiment:
    table: Table = description.config
    if device := config.get("device"):
        table = merged(table, {"device": device})
    if directory := config.get("data-dir"):
        table = merged(table, {"data": {"dir": directory}})
    experiment, method = resolve_with_method(table)
    if path := config.get("data"):
        dataset = node_dataset(description, Path(str(path)), experiment.data)
        owner = torch.full((len(dataset.train),), client, dtype=torch.int32)
        return assemble(experiment, method, dataset, Partition(owner, description.clients))
    if experiment.partition == "nodes":
        raise RequestError("the node's configuration has no data: where are its records?")
    if experiment.data.name not in SOURCES:  # a path on the server means nothing here
        raise RequestError(
            f"the experiment's data, '{experiment.data.name}', have no public name; "
            "give this node its own data"
        )
    built = build_resolved(experiment, method)
    if built.dataset.fingerprint != description.data_sha256:
        raise RequestError(f"this node's copy of '{built.dataset.name}' differs from the server's")
    if built.partition.digest != description.partition_sha256:
        raise RequestError("this node partitions the records differently from the server")
    return built


def _complaint(settings: PrivacySettings, delta: float, classes_known: bool) -> str | None:
    """What in the experiment's [privacy] a node with a budget does not accept."""
    if settings.delta > delta:
        return f"privacy.delta is {settings.delta:g}, larger than this node's {delta:g}"
    if settings.reproducible:
        return "noise comes from a seed that the server knows (privacy.reproducible)"
    if settings.classes == "declared" and not classes_known:
        return "clients reveal which classes they hold; allow it with classes = 'declared'"
    return None


def node_dataset(description: Description, path: Path, settings: Any) -> Dataset:
    """The node's own records as a data set that fits the task."""
    split = load_node_data(path, settings, description.shape, description.class_names)
    return Dataset(
        name=path.name,
        train=split,
        test=dataclasses.replace(split, inputs=split.inputs[:0], labels=split.labels[:0]),
        class_names=description.class_names,
        scaling=Scaling(description.mean, description.std),
        fingerprint="",
    )


def _client(config: NodeConfig, clients: int) -> int:
    client = config.get("partition-id")
    if type(client) is not int:
        raise RequestError("the node's configuration has no partition-id: which client is it?")
    if not 0 <= client < clients:
        raise RequestError(
            f"partition-id = {client}: the experiment has clients 0 to {clients - 1}"
        )
    return client


def _default_folder() -> Path:
    home = os.environ.get("FLWR_HOME")
    return (Path(home) if home else Path.home() / ".flwr") / "fedstill"


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
