"""What a synthetic set is worth: the accuracy of networks that were trained on nothing else.

As in the dataset-distillation papers, several networks are initialised at random, each is trained
on the set alone, and mean and spread of their test accuracy are reported: a set that serves one
lucky initialisation shows in the spread.
"""

import statistics
from collections.abc import Callable
from dataclasses import replace

from fedstill.records import Records, SyntheticSet
from fedstill.rng import Rng
from fedstill.steps.fit import fit
from fedstill.steps.scores import score
from fedstill.steps.training import Training, initial_weights
from fedstill.types import Evaluation, Params, Task

_COOLING = 0.1  # of the learning rate, for the second half of the epochs


def train_from_scratch(task: Task, own: SyntheticSet, rng: Rng, training: Training) -> Params:
    """A network initialised at random and trained on this set alone.

    The second half of the epochs has a tenth of the learning rate, and starts without momentum.
    """
    params = initial_weights(task, rng.at("init"))
    cool = training.epochs // 2
    for part, epochs, rate in (
        ("warm", training.epochs - cool, training.learning_rate),
        ("cool", cool, training.learning_rate * _COOLING),
    ):
        half = replace(training, epochs=epochs, learning_rate=rate)
        params = fit(task, params, own.images, own.labels, rng.at(part), half)
    return params


def evaluate_set(
    task: Task,
    own: SyntheticSet,
    test: Records,
    rng: Rng,
    training: Training,
    networks: int,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Mean test accuracy and loss of networks trained on the set; their spread as details."""
    accuracies: list[float] = []
    losses: list[float] = []
    for number in range(networks):
        params = train_from_scratch(task, own, rng.at("network", number), training)
        scores = score(task, params, test)
        accuracies.append(scores.accuracy)
        losses.append(scores.loss)
        if progress:
            progress(number + 1, networks)
    details = {
        "networks": float(networks),
        "accuracy_std": statistics.stdev(accuracies) if networks > 1 else 0.0,
        "accuracy_min": min(accuracies),
        "accuracy_max": max(accuracies),
    }
    return Evaluation(statistics.fmean(accuracies), statistics.fmean(losses), details)
