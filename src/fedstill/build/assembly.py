"""From a request to a built experiment: data, partition, mislabelling, method, model."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from fedstill.build.experiment import BuiltExperiment
from fedstill.build.user_objects import UserObjects
from fedstill.config import Experiment, Partitioning, resolve_model
from fedstill.config.nested import Table
from fedstill.config.registry import build_model
from fedstill.config.resolve import check_device, resolve_with_method
from fedstill.data import (
    Dataset,
    Partition,
    load,
    mislabelled,
    parse_partition,
    partition,
)
from fedstill.errors import RequestError
from fedstill.rng import Rng
from fedstill.scaling import Kind, Scaling
from fedstill.types import AnyMethod, Task


def build(
    request: Mapping[str, Any],
    objects: UserObjects | None = None,
    *,
    dataset: Dataset | None = None,
    partition: Partition | None = None,
) -> BuiltExperiment:
    """Everything that runs the experiment of this request.

    Without ``dataset`` and ``partition``, they are loaded and drawn as the request says. Records
    are mislabelled where ``[corrupt]`` says so.
    """
    objects = objects or UserObjects()
    experiment, method = resolve_with_method(request, objects.method, dataset or objects.data)
    return build_resolved(experiment, method, objects, dataset=dataset, partition=partition)


def build_resolved(
    experiment: Experiment,
    method: AnyMethod,
    objects: UserObjects | None = None,
    *,
    dataset: Dataset | None = None,
    partition: Partition | None = None,
) -> BuiltExperiment:
    """The same for an experiment that is already resolved."""
    objects = objects or UserObjects()
    dataset = dataset or objects.data or load(experiment.data)
    if partition is None:
        partition = partitioned(experiment.partitioning, dataset, pooled=method.pooled)
    dataset = _corrupted(experiment, dataset, partition)
    return assemble(experiment, method, dataset, partition, objects)


def assemble(
    experiment: Experiment,
    method: AnyMethod,
    dataset: Dataset,
    partition: Partition,
    objects: UserObjects | None = None,
) -> BuiltExperiment:
    """The same for records that are already as the clients have them: nothing is mislabelled."""
    objects = objects or UserObjects()
    if dataset.table:
        _refuse_augmentation(experiment, dataset)
    given = objects.network(experiment, dataset)
    return BuiltExperiment(experiment, dataset, partition, method, given, objects.portable)


def _refuse_augmentation(experiment: Experiment, data: Dataset) -> None:
    """Augmentation turns and crops images; a row of features has neither sides nor neighbours."""
    for key, value in experiment.method.items():
        if key.endswith("augment") and value == "dsa":
            raise RequestError(
                f"method.{key} = 'dsa': only images can be augmented, and '{data.name}' is a "
                f"table; set method.{key}=none"
            )


def partitioned(how: Partitioning, dataset: Dataset, *, pooled: bool = False) -> Partition:
    """The records partitioned over clients; one client has all if the method is centralised."""
    labels = dataset.train.labels
    rule = parse_partition(how.partition)
    if pooled:
        if rule.on_nodes:
            raise RequestError(f"partition = '{rule}': a centralised method needs the records here")
        return Partition(torch.zeros(len(labels), dtype=torch.int32), 1)
    return partition(
        labels,
        rule,
        how.clients or rule.default_clients,
        dataset.classes,
        Rng(how.seed).at("partition"),
        dataset.train.groups,
        how.allow_empty_clients,
    )


def network_task(
    section: Mapping[str, Any],
    shape: tuple[int, ...],
    classes: int,
    scaling: Scaling,
    device: str = "cpu",
    kind: Kind = "other",
) -> tuple[Task, Table]:
    """The task of one network by itself, and its ``[model]`` section, fully resolved."""
    table = resolve_model(section)
    on = check_device(device)
    model = build_model(table, shape, classes)
    return Task(model, shape, classes, 1, 1, scaling, on, kind=kind), table


def _corrupted(experiment: Experiment, dataset: Dataset, partition: Partition) -> Dataset:
    """The data as the clients have them: with wrong labels where ``[corrupt]`` says so."""
    train, rng = dataset.train, Rng(experiment.seed).at("corrupt")
    labels = mislabelled(train.labels, partition, dataset.classes, experiment.corrupt, rng)
    return dataclasses.replace(dataset, train=dataclasses.replace(train, labels=labels))
