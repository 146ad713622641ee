"""From an experiment and its data to the things that run: what every process builds alike."""

import dataclasses
import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fedstill.config import Experiment, deciding
from fedstill.data import (
    Dataset,
    Natural,
    Nodes,
    Partition,
    Records,
    mislabelled,
    parse_partition,
    partition,
)
from fedstill.engine.client import ClientRunner
from fedstill.errors import RequestError, RunError
from fedstill.models import MODELS, Model
from fedstill.privacy.plan import PrivatePlan
from fedstill.rng import Rng
from fedstill.types import Task

DEFAULT_CLIENTS = 10


@dataclass(frozen=True)
class Setup:
    """An experiment with its data dealt out to the clients.

    ``own_method`` and ``own_model`` are objects that a caller in Python handed over instead of
    names; they cannot be sent to other processes. ``plan`` is there in a private run alone
    (``privacy/preparing.py`` makes it), and ``ledgers`` is the folder of its clients' ledgers.
    """

    experiment: Experiment
    dataset: Dataset
    partition: Partition
    own_method: Any = None
    own_model: Model | None = None
    plan: PrivatePlan | None = None
    ledgers: Path | None = None

    @cached_property
    def method(self) -> Any:
        return self.own_method or self.experiment.build_method()

    @cached_property
    def task(self) -> Task:
        data, experiment = self.dataset, self.experiment
        return Task(
            model=self.own_model or self._named_model(),
            shape=data.shape,
            classes=data.classes,
            clients=self.partition.clients,
            rounds=experiment.rounds,
            scaling=data.scaling,
            device=torch.device(experiment.device),
        )

    def _named_model(self) -> Model:
        """The network that the experiment names, if it reads what these records are."""
        data, name = self.dataset, self.experiment.model["name"]
        model = self.experiment.build_model(data.shape, data.classes)
        reads_tokens = model.continuous_shape is not None
        if name in MODELS and reads_tokens != data.tokens:
            kind, remedy = (
                ("text", "gru or transformer") if data.tokens else ("no text", "mlp or convnet")
            )
            raise RequestError(
                f"model: '{name}' cannot read '{data.name}': its records are {kind}; use {remedy}"
            )
        return model

    @cached_property
    def runner(self) -> ClientRunner:
        if self.experiment.privacy is not None and self.plan is None:
            raise RunError("privacy is on and there is no plan: no records are handed out")
        codecs = self.experiment.wire
        return ClientRunner(
            self.method,
            self.task,
            self.dataset,
            self.partition,
            self.rng,
            codecs.up,
            codecs.down,
            self.plan,
            self.ledgers,
        )

    @property
    def digest(self) -> str:
        """SHA-256 of what decides the bits beside the records and their owners."""
        settings = deciding(self.experiment.table)
        parts = (settings, self.dataset.scaling, self.task.model)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    @property
    def rng(self) -> Rng:
        return Rng(self.experiment.seed)

    @cached_property
    def candidates(self) -> list[int]:
        """The clients that may be asked: those with records.

        With privacy on, and its classes not public, that would give an empty client away: then all.
        Nodes with data of their own are taken to have some.
        """
        privacy = self.experiment.privacy
        on_nodes = isinstance(parse_partition(self.experiment.partition), Nodes)
        if on_nodes or (privacy is not None and privacy.classes == "all"):
            return list(range(self.partition.clients))
        clients: list[int] = self.partition.sizes.nonzero().flatten().tolist()
        return clients

    @property
    def clients_a_round(self) -> int:
        """How many clients are sampled: at least one."""
        return max(1, round(self.experiment.participation * len(self.candidates)))

    def sample(self, number: int) -> list[int]:
        """Clients of this round, by a stream of its own."""
        generator = self.rng.at("round", number, "sampling").numpy()
        chosen = generator.choice(len(self.candidates), self.clients_a_round, replace=False)
        return sorted(self.candidates[i] for i in chosen)

    @property
    def test(self) -> Records:
        """The official test split."""
        split = self.dataset.test
        return Records(split, torch.arange(len(split)), self.dataset.scaling, self.task.device)

    @property
    def quorum(self) -> int:
        """How many of the sampled clients must answer: at least one."""
        return self.experiment.needed(self.clients_a_round)

    @property
    def portable(self) -> bool:
        """Whether another process can build the same from names alone."""
        return self.own_method is None and self.own_model is None


def prepare(experiment: Experiment, dataset: Dataset, *, pooled: bool) -> tuple[Dataset, Partition]:
    """The records dealt out, and then mislabelled if the experiment wants that."""
    dealt = deal(experiment, dataset, pooled=pooled)
    return corrupted(experiment, dataset, dealt), dealt


def corrupted(experiment: Experiment, dataset: Dataset, dealt: Partition) -> Dataset:
    """The data as the clients have them: with wrong labels where ``[corrupt]`` says so."""
    train = dataset.train
    labels = mislabelled(
        train.labels, dealt, dataset.classes, experiment.corrupt, Rng(experiment.seed).at("corrupt")
    )
    return dataclasses.replace(dataset, train=dataclasses.replace(train, labels=labels))


def refuse_too_few_replies(setup: Setup) -> None:
    """Refuse a run whose rounds would not have the replies that its method needs."""
    least: int = getattr(setup.method, "least_replies", 1)
    table = setup.experiment.method
    who, remedy = f"method '{table['name']}'", ""
    if "aggregate" in table:
        who = f"method.aggregate = '{table['aggregate']}' with byzantine = {table['byzantine']}"
        remedy = ", lower method.byzantine, or take another rule"
    if setup.clients_a_round < least:
        raise RequestError(
            f"{who} needs {least} clients a round, {setup.clients_a_round} are sampled; raise "
            f"clients or participation{remedy}"
        )
    if setup.quorum < least:
        raise RequestError(
            f"quorum = {setup.experiment.quorum:g} lets a round end with {setup.quorum} replies, "
            f"{who} needs {least}; raise quorum{remedy}"
        )


def deal(experiment: Experiment, dataset: Dataset, *, pooled: bool) -> Partition:
    """The records dealt out to the clients; to a single one where a method is centralised."""
    labels = dataset.train.labels
    spec = parse_partition(experiment.partition)
    if pooled:
        if isinstance(spec, Nodes):
            raise RequestError("partition = 'nodes': a centralised method needs records here")
        return Partition(torch.zeros(len(labels), dtype=torch.int32), 1)
    natural = isinstance(spec, Natural | Nodes)  # the data decide, or the user must
    return partition(
        labels,
        spec,
        experiment.clients or (None if natural else DEFAULT_CLIENTS),
        dataset.classes,
        Rng(experiment.seed).at("partition"),
        dataset.train.groups,
        experiment.allow_empty_clients,
    )
