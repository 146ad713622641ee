"""From an experiment and its data to the things that run: what every process builds alike."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fedstill.config import Experiment, deciding
from fedstill.data import Dataset, Natural, Partition, Records, parse_partition, partition
from fedstill.engine.client import ClientRunner
from fedstill.models import Model
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
            model=self.own_model or experiment.build_model(data.shape, data.classes),
            shape=data.shape,
            classes=data.classes,
            clients=self.partition.clients,
            rounds=experiment.rounds,
            scaling=data.scaling,
            device=torch.device(experiment.device),
        )

    @cached_property
    def runner(self) -> ClientRunner:
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
        """
        privacy = self.experiment.privacy
        if privacy is not None and privacy.classes == "all":
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
    def portable(self) -> bool:
        """Whether another process can build the same from names alone."""
        return self.own_method is None and self.own_model is None


def deal(experiment: Experiment, dataset: Dataset, *, pooled: bool) -> Partition:
    """The records dealt out to the clients; to a single one where a method is centralised."""
    labels = dataset.train.labels
    if pooled:
        return Partition(torch.zeros(len(labels), dtype=torch.int32), 1)
    spec = parse_partition(experiment.partition)
    natural = isinstance(spec, Natural)
    return partition(
        labels,
        spec,
        experiment.clients or (None if natural else DEFAULT_CLIENTS),
        dataset.classes,
        Rng(experiment.seed).at("partition"),
        dataset.train.groups,
        experiment.allow_empty_clients,
    )
