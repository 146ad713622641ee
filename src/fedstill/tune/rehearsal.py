"""A rehearsal of the federation at the server: FedAvg among clients that hold parts of a set.

It gives local epochs a meaning on a distilled set, where training in one place has none. Nothing is
sent. The parts have a few images where clients have many records: a local epoch has fewer steps.
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from fedstill.config import resolve
from fedstill.data import parse_partition, partition
from fedstill.errors import RequestError
from fedstill.records import SERVER, SyntheticSet
from fedstill.rng import Rng
from fedstill.runs.folder import RunFolder
from fedstill.runs.sets import StoredSet
from fedstill.steps.arithmetic import weighted_sum
from fedstill.steps.fit import fit
from fedstill.steps.training import initial_weights
from fedstill.tune.space import Candidate
from fedstill.types import Params, Task


def owners_of(stored: StoredSet, run: RunFolder | None) -> Tensor:
    """The client of each image: whoever made it, or as the run's rule partitions the server's set.

    Clients may come out empty: there are fewer images than records.
    """
    if not bool((stored.clients == SERVER).any()):
        return stored.clients
    if run is None:
        raise RequestError(
            "--federated: the server made this set, and the run that says how many clients there "
            "are is not available; give the run folder"
        )
    experiment = resolve(run.read_config())
    rule = parse_partition(experiment.partition)
    if rule.on_nodes:
        raise RequestError(
            "--federated: the nodes held their own records, so there is no rule by which to "
            "partition the server's set"
        )
    rng = Rng(experiment.seed).at("rehearsal")
    classes = len(stored.metadata.class_names)
    clients = experiment.clients or rule.default_clients
    return partition(stored.classes, rule, clients, classes, rng, allow_empty=True).owner


def rehearse(
    task: Task,
    synthetic: SyntheticSet,
    owners: Tensor,
    candidate: Candidate,
    rng: Rng,
) -> Iterator[Params]:
    """The weights after each round of FedAvg among the owners of the images.

    All clients take part in every round, and their optimisers begin anew, as in
    ``methods/fedavg.py``.
    """
    params = initial_weights(task, rng.at("init"))
    local = replace(candidate.training, epochs=candidate.local_epochs)
    clients = owners.unique().tolist()
    sets = [
        SyntheticSet(synthetic.images[owners == k], synthetic.labels[owners == k]) for k in clients
    ]
    shares = [len(held) / len(synthetic) for held in sets]
    for number in range(candidate.reports):
        stream = rng.at("round", number)
        trained = [
            fit(task, params, held.images, held.labels, stream.at("client", k), local)
            for k, held in zip(clients, sets, strict=True)
        ]
        params = weighted_sum(trained, shares)
        yield params
