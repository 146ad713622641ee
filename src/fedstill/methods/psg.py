"""PSG: Chen, Kerkouche and Fritz, "Private Set Generation with Discriminative Information",
NeurIPS 2022, at each client independently: one private synthetic set, and one round suffices.

    1   server: w <- init
    2   client k: S_k <- noise images, images_per_class per class  (later rounds: the last ones)
    3   for each of some restarts:
    4       theta <- newly initialised weights
    5       several times:
    6           g <- gradient at theta of the loss over a batch of records, sanitised
    7           pixel steps on S_k of dist(g, grad L(theta; S_k))
    8           theta <- a few SGD steps on the loss over S_k
    9   client k: send S_k
    10  server: w <- SGD on the loss over the union of all S_k, from w

The server's weights are not used by the clients: what they distil does not depend on the round, so
the method is meant for one round. The distance is DC's. Without privacy line 6 is a plain
mini-batch gradient, and this is gradient matching at each client independently.
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
from fedstill.steps.fit import fit
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.steps.gradient_matching import gradient_matching_pixels
from fedstill.steps.per_record import weight_gradients
from fedstill.steps.training import Training, initial_weights
from fedstill.types import ClientContext, Params, Task


@dataclass(frozen=True)
class PSG(SurrogateTraining[LastSet]):
    """One-shot private set: gradient matching on sanitised gradients of random networks."""

    PRIVATE_DEFAULTS: ClassVar[Mapping[str, Any]] = {"weighting": "union"}

    restarts: Annotated[int, Meta(ge=1)] = 5
    gradients: Annotated[int, Meta(ge=1)] = 4  # sanitised gradients per network
    pixel_steps: Annotated[int, Meta(ge=1)] = 5
    pixel_learning_rate: Annotated[float, Meta(gt=0)] = 0.1
    network_steps: Annotated[int, Meta(ge=1)] = 5
    network_learning_rate: Annotated[float, Meta(gt=0)] = 0.05
    real_batch: Annotated[int, Meta(ge=1)] = 256
    radius: Annotated[float, Meta(ge=0)] = 1e6  # unlimited: the set is no surrogate around w

    def private_form(self, rate: float) -> PrivateForm:
        return PrivateForm(self.restarts * self.gradients)

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
        optimiser = torch.optim.Adam([images], lr=self.pixel_learning_rate)
        distance = 0.0
        total = self.restarts * self.gradients
        for access in range(total):  # lines 3 to 8
            restart, number = divmod(access, self.gradients)
            if number == 0:
                weights = initial_weights(ctx.task, ctx.rng.at("network", restart))  # line 4
            target = self.gradient(ctx, weights, access)  # line 6
            for _ in range(self.pixel_steps):  # line 7
                images.grad, found = gradient_matching_pixels(
                    ctx.task, weights, images, labels, target
                )
                optimiser.step()
            distance = float(found)
            weights = self.step(ctx, weights, images, labels, access)  # line 8
            ctx.progress(access + 1, total)
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
        self, ctx: ClientContext, weights: Params, images: Tensor, labels: Tensor, access: int
    ) -> Params:
        """Line 8: the network trains on the images alone."""
        return fit(
            ctx.task,
            weights,
            images,
            labels,
            ctx.rng.at("network steps", access),
            Training(self.network_learning_rate, batch_size=self.server_batch),
            iterations=self.network_steps,
        )
