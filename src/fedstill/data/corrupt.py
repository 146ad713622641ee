"""Wrong labels on purpose: to see what a method makes of them.

A share of a client's training records gets the label that one fixed permutation gives for the
right one. The permutation is the same everywhere and leaves no class in its place, as in DistDD's
experiments. Records are partitioned by their right labels first. The test split is not an argument
here, so it cannot be touched.
"""

import torch
from torch import Tensor

from fedstill.data.partition.assign import Partition
from fedstill.data.settings import CorruptSettings
from fedstill.errors import RequestError
from fedstill.rng import Rng


def derangement(classes: int, rng: Rng) -> Tensor:
    """A random permutation that moves every class: int64 [classes].

    Drawn until none stays: about three draws, however many classes there are.
    """
    if classes < 2:
        raise RequestError(
            "corrupt.share: with a single class there is no wrong label; set it to 0"
        )
    generator = rng.torch()
    while True:
        drawn = torch.randperm(classes, generator=generator)
        if not bool((drawn == torch.arange(classes)).any()):
            return drawn


def mislabelled(
    labels: Tensor, partition: Partition, classes: int, settings: CorruptSettings, rng: Rng
) -> Tensor:
    """The labels with the requested share of them wrong, client by client, to the nearest record.

    Pass the run's ``Rng(seed).at("corrupt")``. Which records of a client are hit depends on that
    client alone; a larger share hits those of a smaller one and more.
    """
    clients = _clients(settings, partition.clients)
    if settings.share == 0:
        return labels
    wrong = derangement(classes, rng.at("permutation")).to(labels.dtype)
    changed = labels.clone()
    for client in clients:
        held = partition.index(client)
        order = torch.randperm(len(held), generator=rng.at("client", client).torch())
        hit = held[order[: round(settings.share * len(held))]]
        changed[hit] = wrong[labels[hit].long()]
    return changed


def _clients(settings: CorruptSettings, number: int) -> list[int]:
    if settings.clients == "all":
        return list(range(number))
    for client in settings.clients:
        if not 0 <= client < number:
            raise RequestError(
                f"corrupt.clients: there is no client {client}; the {number} clients are "
                f"0 to {number - 1}"
            )
    return sorted(set(settings.clients))
