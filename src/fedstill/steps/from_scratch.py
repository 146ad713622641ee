"""How useful a synthetic set is: the accuracy of networks trained on nothing else.

As in the dataset-distillation papers, several networks are initialised at random, each is trained
on the set alone, and mean and standard deviation of their test accuracy are reported: a set that
suits one initialisation only shows in the deviation.
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

_COOLING = 0.1  # factor on the learning rate in the second half of the epochs


def train_from_scratch(task: Task, synthetic: SyntheticSet, rng: Rng, training: Training) -> Params:
    """A newly initialised network, trained on this set alone.

    The second half of the epochs has a tenth of the learning rate, and starts with zero momentum.
    """
    params = initial_weights(task, rng.at("init"))
    cool = training.epochs // 2
    for part, epochs, rate in (
        ("warm", training.epochs - cool, training.learning_rate),
        ("cool", cool, training.learning_rate * _COOLING),
    ):
        half = replace(training, epochs=epochs, learning_rate=rate, schedule="constant")
        params = fit(task, params, synthetic.images, synthetic.labels, rng.at(part), half)
    return params


def evaluate_set(
    task: Task,
    synthetic: SyntheticSet,
    test: Records,
    rng: Rng,
    training: Training,
    networks: int,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Mean test accuracy and loss of networks trained on the set; the spread is in ``details``."""
    accuracies: list[float] = []
    losses: list[float] = []
    for number in range(networks):
        params = train_from_scratch(task, synthetic, rng.at("network", number), training)
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
