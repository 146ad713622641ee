"""The node's side: which client it is, where its records are, and what never leaves it.

A node's configuration decides all of that (``terms.py``), never a message from the server. A turn
goes in this order, so that neither an error nor its absence depends on a record:

    1  the description is checked: its types, the node's limits, code and privacy terms
    2  the privacy ledger is locked, and all accesses of the turn are counted
    3  the records are opened, and the client computes

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
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import msgspec
import torch

from fedstill.build import BuiltExperiment, assemble, build_resolved
from fedstill.client import ClientRunner
from fedstill.config.nested import Table, read_toml
from fedstill.config.resolve import resolve_with_method
from fedstill.data import CHARACTERS, SOURCES, Dataset, DataSettings, Partition, Scaling
from fedstill.data.node_data import load_node_data
from fedstill.engine.base import Answer, Work
from fedstill.engine.flower.codes import Refusal
from fedstill.engine.flower.description import Description, read_description
from fedstill.engine.flower.states import States
from fedstill.engine.flower.terms import NodeConfig, NodeTerms
from fedstill.engine.handover import rebuild
from fedstill.engine.memory import keep_freed_memory
from fedstill.engine.threads import threads
from fedstill.errors import FedstillError
from fedstill.files import write_atomically
from fedstill.privacy.settings import PrivacySettings
from fedstill.records import Split
from fedstill.version import VERSION

# Set by the process that starts a simulation: a folder with its experiments. A node of a deployment
# has no such variable, and no message can make it read files.
SIMULATION = "FEDSTILL_SIMULATION"
RELAY_SOCKET = "relay"  # in that folder


@dataclass(frozen=True)
class Node:
    """One client on its node.

    ``built`` is the experiment without records, and ``open_records`` adds them. ``folder`` is the
    client's and outlives an experiment: the privacy ledger is there. ``experiment`` names the
    experiment's folder in it.
    """

    client: int
    built: BuiltExperiment
    folder: Path
    experiment: str
    open_records: Callable[[], BuiltExperiment] | None = None

    @cached_property
    def opened(self) -> BuiltExperiment:
        """The experiment with this client's records."""
        if self.open_records is None:
            return self.built
        try:
            return self.open_records()
        except FedstillError as error:
            raise Refusal("records", str(error)) from error

    def introduce(self) -> None:
        """Refuse a task that the records do not fit. With privacy on they stay closed: nothing
        has been counted yet."""
        if self.built.plan is None:
            _ = self.opened

    def answer(self, work: Work, progress: Callable[[int, int], None]) -> Answer:
        """The client's turn, with the state that this node kept for it."""
        if work.client != self.client:
            raise Refusal("request", f"it is client {self.client}, not {work.client}")
        states = States(self.folder / self.experiment)
        state = None if work.state is None else states.read(work.state)
        runner = self._runner(work.round)
        with threads(self.built.experiment.engine.threads):
            answer = runner.answer(dataclasses.replace(work, state=state), progress)
        if answer.state is None:
            return answer
        return dataclasses.replace(answer, state=states.keep(answer.state, work.state))

    def _runner(self, round: int) -> ClientRunner:
        """What computes the turn. In a private experiment, its accesses are counted first."""
        plan, ledgers = self.built.plan, self.built.ledgers
        if plan is None or ledgers is None:
            return self.opened.runner
        ledger = plan.ledger(ledgers, self.client)
        reserved = ledger.reserve(round, plan.clip, plan.accesses_in(round))
        runner = self.opened.runner
        return dataclasses.replace(
            runner, records=dataclasses.replace(runner.records, reserved=reserved)
        )


def node_for(text: str, config: NodeConfig) -> Node:
    """This node in the experiment that ``text`` describes."""
    return _node_for(text, tuple(sorted(config.items())))


@lru_cache(maxsize=4)  # a simulated node serves many clients, and building one reads the data
def _node_for(text: str, items: tuple[tuple[str, Any], ...]) -> Node:
    keep_freed_memory()
    description, terms = read_description(text), NodeTerms.of(dict(items))
    if description.version != VERSION:
        raise Refusal(
            "version",
            f"this node has fedstill {VERSION}, the server {description.version}; "
            "install the same version",
        )
    terms.check_size(description)
    client, experiment = terms.partition_id, description.experiment_sha256[:16]
    if simulation := os.environ.get(SIMULATION):
        built, folder = _simulated(simulated_file(Path(simulation), text))
        return Node(client, built, _kept(folder, client), experiment)
    try:
        return _deployed(description, terms, _kept(terms.home, client), experiment)
    except Refusal:
        raise
    except FedstillError as error:
        raise Refusal("request", str(error)) from error


def _kept(folder: Path, client: int) -> Path:
    return folder / f"client-{client:05d}"


def _deployed(description: Description, terms: NodeTerms, folder: Path, experiment: str) -> Node:
    """The node of a deployment: nothing is opened yet."""
    terms.check_code(description.config)
    built = _without_records(description, terms)
    terms.check_work(built.method, built.experiment)
    built = _within_budget(built, terms, folder / "ledger")
    if terms.data is not None:
        if not Path(terms.data).expanduser().exists():
            raise Refusal("records", f"data = {terms.data}: no such file or folder")
        _pin(folder / "task.json", description)
    elif built.experiment.partition == "nodes":
        raise Refusal("request", "the node's configuration has no data: where are its records?")

    def open_records() -> BuiltExperiment:
        return _with_records(built, description, terms)

    return Node(terms.partition_id, built, folder, experiment, open_records)


def _without_records(description: Description, terms: NodeTerms) -> BuiltExperiment:
    """The experiment on public facts alone, with the node's own names of files and columns."""
    table: Table = {**description.config, "data": _data_section(description, terms)}
    if terms.device is not None:
        table["device"] = terms.device
    experiment, method = resolve_with_method(table)
    public = public_dataset(description, experiment.data)
    nobody = Partition(torch.zeros(0, dtype=torch.int32), description.clients)
    return assemble(experiment, method, public, nobody)


def _data_section(description: Description, terms: NodeTerms) -> Table:
    """The ``[data]`` section: from the server only the name of a public data set and its form."""
    sent = description.config.get("data")
    section = dict(sent) if isinstance(sent, dict) else {"name": sent}
    name = section.get("name", DataSettings.name)
    if not isinstance(name, str) or name not in SOURCES:
        if terms.data is None:  # a path on the server means nothing here
            raise Refusal(
                "request",
                f"the experiment's data, '{name}', have no public name; give this node its own",
            )
        name = DataSettings.name  # the records are the node's own: the name is not used
    kept = ("mean", "std", "sequence_length", "domains")
    own: Table = {key: section[key] for key in kept if key in section}
    if section.get("vocabulary") == CHARACTERS:
        own["vocabulary"] = CHARACTERS
    chosen = {
        "name": name,
        "dir": terms.data_dir,
        "image_size": terms.image_size or _resized(section, description),
        "label_column": terms.label_column,
        "image_column": terms.image_column,
        "split_column": terms.split_column,
    }
    return own | {key: value for key, value in chosen.items() if value is not None}


def _resized(section: Table, description: Description) -> int | None:
    """The experiment's image size, if it is that of its task, to which the node is bound."""
    size = section.get("image_size")
    return size if isinstance(size, int) and description.shape[1:] == (size, size) else None


def public_dataset(description: Description, settings: DataSettings) -> Dataset:
    """A data set of the task's form, without a single record."""
    source = SOURCES.get(settings.name)
    scaling = Scaling(description.mean, description.std)
    labels = torch.zeros(0, dtype=torch.int64)
    if scaling.mean:
        inputs = torch.zeros(0, *description.shape, dtype=torch.uint8)
    elif source is not None and source.text:
        inputs = torch.zeros(0, *description.shape, dtype=torch.int64)
        labels = torch.zeros(0, *description.shape, dtype=torch.int64)
    else:
        inputs = torch.zeros(0, *description.shape)
    nothing = Split(inputs, labels)
    return Dataset(
        settings.name,
        nothing,
        nothing,
        description.class_names,
        scaling,
        "",
        columns=description.columns,
    )


def _within_budget(built: BuiltExperiment, terms: NodeTerms, ledgers: Path) -> BuiltExperiment:
    """The experiment behind the private door, if it has one and the node's budget allows it."""
    settings = built.experiment.privacy
    if settings is None:
        if terms.epsilon is not None:
            raise Refusal(
                "request",
                f"this node has a privacy budget (epsilon = {terms.epsilon:g}) and the experiment "
                "has no [privacy]: it gives no access to its records",
            )
        return built
    if terms.epsilon is not None:
        if complaint := _complaint(settings, terms):
            raise Refusal(
                "request", f"this node has a privacy budget, and the experiment's {complaint}"
            )
        asked = terms.epsilon if settings.epsilon is None else settings.epsilon
        limited = dataclasses.replace(settings, epsilon=min(terms.epsilon, asked))
        experiment = dataclasses.replace(built.experiment, privacy=limited)
        built = dataclasses.replace(built, experiment=experiment)
    return built.planned().with_ledgers(ledgers)


def _complaint(settings: PrivacySettings, terms: NodeTerms) -> str | None:
    """What in the experiment's [privacy] a node with a budget does not accept."""
    if settings.delta > terms.delta:
        return f"privacy.delta is {settings.delta:g}, larger than this node's {terms.delta:g}"
    if settings.reproducible:
        return "noise comes from a seed that the server knows (privacy.reproducible)"
    if settings.classes == "declared" and terms.classes != "declared":
        return "clients reveal which classes they hold; allow it with classes = 'declared'"
    return None


def _pin(path: Path, description: Description) -> None:
    """Bind the node's own records to the first task: a server must not choose, turn by turn, how
    their columns and classes are read."""
    facts = (description.shape, description.class_names, description.mean, description.std)
    public: dict[str, object] = dict(
        zip(("shape", "class_names", "mean", "std"), facts, strict=True)
    )
    if description.columns:
        public["columns"] = description.columns
    task = msgspec.json.encode(public)
    if not path.exists():
        write_atomically(path, task + b"\n")
    elif path.read_bytes().strip() != task:
        raise Refusal(
            "task",
            f"the experiment has another task (shape, classes, scaling, columns) than {path}; if "
            "it is meant to, delete that file",
        )


def _with_records(
    built: BuiltExperiment, description: Description, terms: NodeTerms
) -> BuiltExperiment:
    """The same with this node's records."""
    experiment, client = built.experiment, terms.partition_id
    if terms.data is not None:
        split = _own_records(built, terms.data)
        dataset = dataclasses.replace(built.dataset, train=split)
        owner = torch.full((len(split),), client, dtype=torch.int32)
        partition = Partition(owner, description.clients)
    else:
        loaded = build_resolved(experiment, built.method)
        dataset, partition = loaded.dataset, loaded.partition
        _refuse_other_data(loaded, description)
    plan, privacy = built.plan, experiment.privacy
    if plan is not None and privacy is not None and privacy.classes == "declared":
        held = dataset.train.labels[partition.index(client)].unique().tolist()
        classes = (*plan.classes[:client], tuple(held), *plan.classes[client + 1 :])
        plan = dataclasses.replace(plan, classes=classes)
    return dataclasses.replace(
        built, dataset=dataset, partition=partition, plan=plan, given_model=built.model
    )


def _own_records(built: BuiltExperiment, path: str) -> Split:
    """The node's own records. With privacy on, nothing about them may fail observably: what cannot
    be opened counts as no records, and the node answers with noise."""
    data, settings = built.dataset, built.experiment.data
    task = data.shape, data.class_names, data.columns
    if built.experiment.privacy is None:
        return load_node_data(Path(path), settings, *task)
    try:
        return load_node_data(Path(path), settings, *task, tolerant=True)
    except Exception as error:
        warnings.warn(
            f"the records cannot be opened, so this node answers with noise alone: {error}",
            stacklevel=2,
        )
        return data.train


def _refuse_other_data(loaded: BuiltExperiment, description: Description) -> None:
    if loaded.dataset.fingerprint != description.data_sha256:
        raise Refusal(
            "records", f"this node's copy of '{loaded.dataset.name}' differs from the server's"
        )
    if loaded.partition.digest != description.partition_sha256:
        raise Refusal("records", "this node partitions the records differently from the server")


def simulated_file(simulation: Path, text: str) -> Path:
    """Where a simulation puts the experiment that ``text`` describes."""
    return simulation / f"{hashlib.sha256(text.encode()).hexdigest()}.toml"


@lru_cache(maxsize=1)
def _simulated(file: Path) -> tuple[BuiltExperiment, Path]:
    """One experiment for all clients that this process simulates, and where their files go."""
    header = read_toml(file)
    sys.path[:] = header["path"]
    return rebuild(header), Path(header["nodes"])
