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

_COOLING = 0.1  # factor on the learning rate in the second half


def train_from_scratch(
    task: Task,
    synthetic: SyntheticSet,
    rng: Rng,
    training: Training,
    iterations: int | None = None,
) -> Params:
    """A newly initialised network, trained on this set alone, for all epochs or ``iterations``.

    With a constant schedule, the second half has a tenth of the learning rate, and starts with zero
    momentum, as in the papers.
    """
    params = initial_weights(task, rng.at("init"))
    parts = [("fit", iterations or training.steps(len(synthetic)), training)]
    if training.schedule == "constant":
        epoch = 1 if iterations else parts[0][1] // training.epochs  # halves are whole epochs
        cool = parts[0][1] // epoch // 2 * epoch
        slow = replace(training, learning_rate=training.learning_rate * _COOLING)
        parts = [("warm", parts[0][1] - cool, training), ("cool", cool, slow)]
    images, labels = synthetic.images, synthetic.labels
    for name, steps, how in parts:
        params = fit(task, params, images, labels, rng.at(name), how, iterations=steps)
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
