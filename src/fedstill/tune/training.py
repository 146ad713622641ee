"""How a candidate is trained on a distilled set: epoch by epoch, so that it can be pruned."""

from collections.abc import Iterator

import torch

from fedstill.records import SyntheticSet
from fedstill.rng import Rng
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.steps.training import Descent, Training, initial_weights
from fedstill.steps.warp import augmentations
from fedstill.types import Params, Task

# A candidate's training where it is not searched.
DEFAULT_TRAINING = Training(
    learning_rate=0.02, momentum=0.9, batch_size=64, epochs=40, schedule="step"
)


def train(task: Task, synthetic: SyntheticSet, training: Training, rng: Rng) -> Iterator[Params]:
    """The weights of a newly initialised network after each epoch.

    The next epoch overwrites them.
    """
    weights = tracked(initial_weights(task, rng.at("init")))
    descent = Descent(weights, training)
    steps = training.steps(len(synthetic))
    step = 0
    for epoch in range(training.epochs):
        order = torch.randperm(len(synthetic), generator=rng.at("order", epoch).torch())
        changes = rng.at("augment", epoch).torch()
        draws = rng.at("dropout", epoch).torch()
        augment = augmentations(training.augment, task, changes, flip=training.flip)
        for rows in order.split(training.batch_size):
            rows = rows.to(synthetic.images.device)
            images, labels = augment()(synthetic.images[rows]), synthetic.labels[rows]
            gradient, _ = batch_gradient(task, weights, images, labels, draws=draws, mixed=True)
            descent.step(gradient, training.rate(step, steps))
            step += 1
        yield {name: weight.detach() for name, weight in weights.items()}
