"""The value of a candidate: trained on one part of the set and tested on the other, or by a vote of
the clients.

Several networks (``repeats``), each with its own split, are trained side by side, so that after
every epoch their mean accuracy can decide whether to continue.
"""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstill.build import network_task
from fedstill.data import kind_of
from fedstill.errors import RequestError
from fedstill.records import SyntheticSet
from fedstill.rng import Rng
from fedstill.runs.sets import StoredSet
from fedstill.steps.scores import score_set
from fedstill.tune.rehearsal import rehearse
from fedstill.tune.space import Candidate
from fedstill.tune.training import train
from fedstill.tune.vote import Voters
from fedstill.types import Params, Task

ShouldContinue = Callable[[int, float], bool]  # from the epoch and the accuracy after it


@dataclass(frozen=True)
class Verdict:
    """A candidate's value, its accuracy on held-out images, and the cost of its votes."""

    value: float
    held_out: float
    weights: int  # in the network
    up_bytes: int = 0
    down_bytes: int = 0


@dataclass(frozen=True)
class Judge:
    """Judges candidates on one set. The same candidate always gets the same verdict."""

    stored: StoredSet
    seed: int = 0
    holdout: float = 0.25
    repeats: int = 1
    device: str = "cpu"
    voters: Voters | None = None  # None: held-out images decide
    owners: Tensor | None = None  # the client of each image, for a rehearsal of the federation

    def judge(self, candidate: Candidate, should_continue: ShouldContinue) -> Verdict | None:
        """The verdict; ``None`` if ``should_continue`` stopped the training."""
        task = self._task(candidate)
        rng = Rng(self.seed).at("tune")
        held = [self._held(rng.at("split", r)) for r in range(self.repeats)]
        splits = [self._split(task, rows) for rows in held]
        trainings = [
            self._training(task, candidate, used, ~rows, rng.at("network", r))
            for r, (rows, (used, _)) in enumerate(zip(held, splits, strict=True))
        ]
        networks: tuple[Params, ...] = ()
        held_out = 0.0
        for epoch, networks in enumerate(zip(*trainings, strict=True), 1):
            held_out = statistics.fmean(
                score_set(task, params, other).accuracy
                for params, (_, other) in zip(networks, splits, strict=True)
            )
            if not should_continue(epoch, held_out):
                return None
        if self.voters is None:
            return Verdict(held_out, held_out, task.model.size)
        if not all(bool(w.isfinite().all()) for params in networks for w in params.values()):
            return Verdict(0.0, held_out, task.model.size)  # diverged: nothing to vote on
        tallies = [self.voters.vote(candidate.model, task, params) for params in networks]
        return Verdict(
            statistics.fmean(tally.accuracy for tally in tallies),
            held_out,
            task.model.size,
            sum(tally.up_bytes for tally in tallies),
            sum(tally.down_bytes for tally in tallies),
        )

    def _task(self, candidate: Candidate) -> Task:
        data = self.stored.metadata
        classes, kind = len(data.class_names), kind_of(data.data, data.shape)
        return network_task(candidate.model, data.shape, classes, data.scaling, self.device, kind)[
            0
        ]

    def _held(self, rng: Rng) -> Tensor:
        """Which rows of the set are held out."""
        return held_out_rows(self.stored.classes, self.holdout, rng)

    def _split(self, task: Task, held: Tensor) -> tuple[SyntheticSet, SyntheticSet]:
        """The part to train on, and the held-out part."""
        images, labels = self.stored.images.to(task.device), self.stored.labels.to(task.device)
        held = held.to(task.device)
        return SyntheticSet(images[~held], labels[~held]), SyntheticSet(images[held], labels[held])

    def _training(
        self, task: Task, candidate: Candidate, used: SyntheticSet, rows: Tensor, rng: Rng
    ) -> Iterator[Params]:
        """The candidate's training on these rows of the set, in one place or among clients."""
        if candidate.federated is None or self.owners is None:
            return train(task, used, candidate.training, rng)
        return rehearse(task, used, self.owners[rows].to(task.device), candidate, rng)


def held_out_rows(classes: Tensor, share: float, rng: Rng) -> Tensor:
    """Which rows to hold out: this share of every class, but never all of a class.

    A class with one image is trained on and not tested.
    """
    held = torch.zeros(len(classes), dtype=torch.bool)
    for label in classes.unique().tolist():
        rows = (classes == label).nonzero().flatten()
        number = min(len(rows) - 1, max(1, round(share * len(rows))))
        order = torch.randperm(len(rows), generator=rng.at(label).torch())
        held[rows[order[:number]]] = True
    if not bool(held.any()):
        raise RequestError(
            "the set has one image per class, so none can be held out; use a set with more images "
            "per class"
        )
    return held
