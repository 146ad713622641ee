"""What a synthetic set is worth: the accuracy of fresh networks that saw nothing else.

As in the dataset-distillation papers, several networks are initialised at random, each is trained
on the set alone, and mean and spread of their test accuracy are reported: a set that serves one
lucky initialisation shows in the spread.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from fedstill.data.dataset import Records
from fedstill.rng import Rng
from fedstill.steps.fit import fit
from fedstill.steps.gradient import evaluate
from fedstill.synthetic import SyntheticSet
from fedstill.tree import to_device
from fedstill.types import Evaluation, Params, Task

_COOLING = 0.1  # of the learning rate, for the second half of the epochs


@dataclass(frozen=True)
class FreshTraining:
    """How a fresh network is trained on a set: the second half at a tenth of the rate."""

    epochs: int
    learning_rate: float
    momentum: float = 0.9
    batch_size: int = 256


def fresh_network(task: Task, own: SyntheticSet, rng: Rng, training: FreshTraining) -> Params:
    """A network initialised at random and trained on this set alone."""
    params: Params = to_device(task.model.init(rng.at("init").torch()), task.device)
    cool = training.epochs // 2
    for part, epochs, rate in (
        ("warm", training.epochs - cool, training.learning_rate),
        ("cool", cool, training.learning_rate * _COOLING),
    ):
        params = fit(
            task,
            params,
            own.images,
            own.labels,
            rng.at(part),
            learning_rate=rate,
            batch_size=training.batch_size,
            epochs=epochs,
            momentum=training.momentum,
        )
    return params


def evaluate_set(
    task: Task,
    own: SyntheticSet,
    test: Records,
    rng: Rng,
    training: FreshTraining,
    networks: int,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Mean test accuracy and loss of fresh networks trained on the set; the spread as details."""
    accuracies: list[float] = []
    losses: list[float] = []
    for number in range(networks):
        params = fresh_network(task, own, rng.at("network", number), training)
        accuracy, loss = evaluate(task, params, test)
        accuracies.append(accuracy)
        losses.append(loss)
        if progress:
            progress(number + 1, networks)
    details = {
        "fresh_networks": float(networks),
        "accuracy_std": statistics.stdev(accuracies) if networks > 1 else 0.0,
        "accuracy_min": min(accuracies),
        "accuracy_max": max(accuracies),
    }
    return Evaluation(statistics.fmean(accuracies), statistics.fmean(losses), details)
