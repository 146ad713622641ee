"""From an experiment and its data to the things that run: what every process builds alike."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from fedstill.config import Experiment, deciding
from fedstill.data import Dataset, Natural, Nodes, Partition, Records, parse_partition, partition
from fedstill.engine.client import ClientRunner
from fedstill.errors import RequestError
from fedstill.models import Model
from fedstill.rng import Rng
from fedstill.types import Task

DEFAULT_CLIENTS = 10


@dataclass(frozen=True)
class Setup:
    """An experiment with its data dealt out to the clients.

    ``own_method`` and ``own_model`` are objects that a caller in Python handed over instead of
    names; they cannot be sent to other processes.
    """

    experiment: Experiment
    dataset: Dataset
    partition: Partition
    own_method: Any = None
    own_model: Model | None = None

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
            self.method, self.task, self.dataset, self.partition, self.rng, codecs.up, codecs.down
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

    @property
    def test(self) -> Records:
        """The official test split."""
        split = self.dataset.test
        return Records(split, torch.arange(len(split)), self.dataset.scaling, self.task.device)

    @property
    def with_records(self) -> list[int]:
        """Clients that can be asked. Nodes with data of their own are taken to have some."""
        if isinstance(parse_partition(self.experiment.partition), Nodes):
            return list(range(self.partition.clients))
        clients: list[int] = self.partition.sizes.nonzero().flatten().tolist()
        return clients

    @property
    def portable(self) -> bool:
        """Whether another process can build the same from names alone."""
        return self.own_method is None and self.own_model is None


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
