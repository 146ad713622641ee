"""PSG: Chen, Kerkouche and Fritz, "Private Set Generation with Discriminative Information",
NeurIPS 2022, at each client independently: one private synthetic set, and one round suffices.

    1   server: w <- init
    2   client k: S_k <- noise images, images_per_class per class  (later rounds: the last ones)
    3   for each of some restarts:
    4       theta <- newly initialised weights
    5       several times:
    6           for some batches: g <- gradient at theta of the loss over a batch, sanitised
    7               pixel steps on S_k of dist(g, grad L(theta; S_k))
    8           theta <- a few SGD steps on the loss over S_k
    9   client k: send S_k
    10  server: w <- SGD on the loss over the union of all S_k, from w

The server's weights are not used by the clients: what they distil does not depend on the round, so
the method is meant for one round. The distance is DC's. Without privacy line 6 is a plain
mini-batch gradient, and this is gradient matching at each client independently.

The official code's values at 10 images per class: 1000 restarts, 10 points of theta with 10 batches
of 256 each (100,000 accesses, sigma solved from the budget, clip 0.1), one pixel step per gradient
(SGD, learning rate 0.1, momentum 0.5), 50 epochs of SGD at 0.01 in line 8. The defaults below are
for a laptop, where every access counts: few of them, with several pixel steps (Adam) on each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from msgspec import Meta
from torch import Tensor

from fedstill.methods.shared.messages import LastSet, Weights
from fedstill.methods.shared.surrogate import Distilled, SurrogateTraining
from fedstill.private import PrivateForm
from fedstill.records import SyntheticSet
from fedstill.steps.classes import labels_for, noise_for
from fedstill.steps.distil import PixelOptimiser, PixelSteps, pixel_optimiser
from fedstill.steps.fit import fit
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.steps.gradient_matching import gradient_matching_pixels
from fedstill.steps.per_record import weight_gradients
from fedstill.steps.training import Schedule, Training, initial_weights
from fedstill.steps.warp import ImageAugment
from fedstill.types import ClientContext, Params, Task


@dataclass(frozen=True)
class PSG(SurrogateTraining[LastSet]):
    """One-shot private set: gradient matching on sanitised gradients of random networks."""

    PRIVATE_DEFAULTS: ClassVar[Mapping[str, Any]] = {"weighting": "union"}

    restarts: Annotated[int, Meta(ge=1)] = 5
    gradients: Annotated[int, Meta(ge=1)] = 4  # points of theta per network
    batches: Annotated[int, Meta(ge=1)] = 1  # sanitised gradients per point
    pixel_steps: Annotated[int, Meta(ge=1)] = 5
    pixel_optimiser: PixelOptimiser = "adam"
    pixel_learning_rate: Annotated[float, Meta(gt=0)] = 0.1
    pixel_momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.5  # of SGD
    network_steps: Annotated[int, Meta(ge=1)] = 5
    network_learning_rate: Annotated[float, Meta(gt=0)] = 0.05
    real_batch: Annotated[int, Meta(ge=1)] = 256
    # As in its paper, and measured with these: not FedDM's training.
    server_epochs: Annotated[int, Meta(ge=1)] | None = 40
    server_batch: Annotated[int, Meta(ge=1)] = 256
    server_schedule: Schedule = "constant"
    server_augment: ImageAugment = "none"
    server_balanced: bool = False
    radius: Annotated[float, Meta(ge=0)] = 1e6  # unlimited: the set is no surrogate around w

    def private_form(self, rate: float) -> PrivateForm:
        return PrivateForm(self.restarts * self.gradients * self.batches)

    def init_client(self, task: Task) -> LastSet:
        return LastSet()

    def client(
        self, ctx: ClientContext, message: Weights, state: LastSet
    ) -> tuple[Distilled, LastSet]:
        held = ctx.records.labels.unique() if ctx.private is None else ctx.private.classes
        labels = labels_for(held, self.images_per_class).to(ctx.task.device)
        images = state.images
        if images is None:
            start = noise_for(ctx, len(held), self.images_per_class, ctx.rng.at("images").torch())
            images = start.flatten(0, 1)  # line 2
        images = images.clone()
        steps = PixelSteps(
            self.pixel_optimiser, self.pixel_learning_rate, self.pixel_momentum, self.real_batch
        )
        optimiser = pixel_optimiser(images, steps)
        distance = 0.0
        points = self.restarts * self.gradients
        for point in range(points):  # lines 3 to 8
            restart, number = divmod(point, self.gradients)
            if number == 0:
                weights = initial_weights(ctx.task, ctx.rng.at("network", restart))  # line 4
            for access in range(point * self.batches, (point + 1) * self.batches):
                target = self.gradient(ctx, weights, access)  # line 6
                for _ in range(self.pixel_steps):  # line 7
                    images.grad, found = gradient_matching_pixels(
                        ctx.task, weights, images, labels, target
                    )
                    optimiser.step()
                distance = float(found)
                ctx.progress(access + 1, points * self.batches)
            if number + 1 < self.gradients:  # nothing is matched at a network's last weights
                weights = self.step(ctx, weights, images, labels, point)  # line 8
        images.grad = None
        records = ctx.size if self.weighting == "records" else 0
        return Distilled(SyntheticSet(images, labels), records, distance), LastSet(images)  # line 9

    def gradient(self, ctx: ClientContext, weights: Params, access: int) -> Sequence[Tensor]:
        """Line 6: through the door, or of a mini-batch where privacy is off."""
        if ctx.private is not None:
            return list(ctx.private.noisy_mean(weight_gradients(ctx.task, weights)).values())
        order = torch.randperm(len(ctx.records), generator=ctx.rng.at("batch", access).torch())
        x, y = ctx.records.take(order[: self.real_batch])
        return batch_gradient(ctx.task, tracked(weights), x, y)[0]

    def step(
        self, ctx: ClientContext, weights: Params, images: Tensor, labels: Tensor, point: int
    ) -> Params:
        """Line 8: the network trains on the images alone."""
        return fit(
            ctx.task,
            weights,
            images,
            labels,
            ctx.rng.at("network steps", point),
            Training(self.network_learning_rate, batch_size=self.server_batch),
            iterations=self.network_steps,
        )
