"""The server's side of FedDM: the loss on the clients' images is a surrogate of their losses.

Sections of the pseudo-code in ``feddm.py`` are cited by their line numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from msgspec import Meta
from torch import Tensor

from fedstill.methods.shared.messages import (
    LOSSES,
    Weights,
    record_range,
    set_specs,
    weights_schema,
)
from fedstill.methods.shared.server_fit import STEPS, ServerFit
from fedstill.methods.shared.weighting import weighting_leaks
from fedstill.private import Leak
from fedstill.records import SyntheticSet
from fedstill.steps.fit import fit
from fedstill.steps.training import Schedule, Training
from fedstill.steps.warp import ImageAugment, chosen_augment
from fedstill.types import C, ClientContext, Method, Params, Reply, ServerContext, Task
from fedstill.wire import Schema, TensorSpec


@dataclass(frozen=True)
class Distilled:
    """Up: a synthetic set, the client's number of records (0 unless the server weights by it), and
    the matching loss."""

    synthetic: SyntheticSet
    records: int
    loss: float


def trust_of_images(replies: Sequence[Reply[Distilled]]) -> Tensor | None:
    """The trust in each image's client, in the order of the union, with mean 1.

    ``None`` if all clients have trust 1, so that the computation is then the same as without it.
    """
    if all(reply.trust == 1 for reply in replies):
        return None
    sets = [reply.message.synthetic for reply in replies]
    trust = torch.tensor([reply.trust for reply in replies])
    sizes = torch.tensor([len(synthetic) for synthetic in sets])
    by_image = trust.repeat_interleave(sizes).to(sets[0].images)
    return by_image / by_image.mean()


@dataclass(frozen=True)
class Pool:
    """The images of all clients in one round, with their weights in the server's loss."""

    images: Tensor
    labels: Tensor
    weights: Tensor


def pooled(replies: Sequence[Reply[Distilled]], shares: Tensor | None = None) -> Pool:
    """The union of the sets. Weights: ``shares``, or equal for all images, times the trust in the
    client; their mean is 1."""
    sets = [reply.message.synthetic for reply in replies]
    images, labels = torch.cat([s.images for s in sets]), torch.cat([s.labels for s in sets])
    weights = torch.ones(len(images), device=images.device) if shares is None else shares
    trust = trust_of_images(replies)
    if trust is not None:
        weights = weights * trust
        weights = weights / weights.mean()
    return Pool(images, labels, weights)


@dataclass(frozen=True)
class Surrogate:
    """Server state: the weights and the pools of earlier rounds, oldest first."""

    params: Params
    memory: tuple[Pool, ...] = ()


@dataclass(frozen=True)
class SurrogateTraining(ServerFit, Method[Surrogate, Weights, C, Distilled]):
    """The server's side of FedDM: training on the clients' images inside the ball."""

    sends_sets: ClassVar[bool] = True
    heeds_trust: ClassVar[bool] = True

    images_per_class: Annotated[int, Meta(ge=1)] = 10
    radius: Annotated[float, Meta(ge=0)] = 5.0
    weighting: Literal["union", "records"] = "union"
    memory: Annotated[int, Meta(ge=0)] = 0  # earlier rounds whose images are trained on too
    # SGD steps per round; None: 600 on images, 150 on those of less than 16 pixels per side, 40 on
    # rows of numbers.
    server_steps: Annotated[int, Meta(ge=1)] | None = None
    server_epochs: Annotated[int, Meta(ge=1)] | None = None  # without server_steps; the paper: 500
    # Few images must teach much: chosen by measurement (docs/measurements.md).
    server_batch: Annotated[int, Meta(ge=1)] = 32  # the paper: 256
    server_schedule: Schedule = "cosine"  # the paper: constant
    server_augment: ImageAugment = "auto"  # the paper: none
    server_balanced: bool = True  # the paper: all images equal

    @property
    def size_leaks(self) -> tuple[Leak, ...]:
        return weighting_leaks(self.weighting)

    def init(self, ctx: ServerContext) -> Surrogate:
        return Surrogate(ctx.first_weights())  # line 1

    def download(self, task: Task) -> Schema[Weights]:
        return weights_schema(task)

    def upload(self, task: Task) -> Schema[Distilled]:
        chosen_augment(self.server_augment, task)  # refuses what does not fit the records
        records = record_range(task, self.weighting == "records")
        numbers = {"records": records, "loss": LOSSES}
        return Schema(Distilled, self.image_specs(task, self.images_per_class), numbers)

    def image_specs(self, task: Task, images_per_class: int) -> dict[str, TensorSpec]:
        """The tensors of a set on its way up (``SmallImages``: smaller images)."""
        return set_specs(task, images_per_class, "synthetic")

    def arrived(self, replies: Sequence[Reply[Distilled]]) -> Sequence[Reply[Distilled]]:
        """The replies with images as the network sees them."""
        return replies

    def steps_on(self, task: Task) -> int | None:
        """The server's steps per round; ``None``: counted in epochs. Given steps come first: epochs
        are the default of some methods, and of private runs."""
        if self.server_steps is not None or self.server_epochs is not None:
            return self.server_steps
        return STEPS[task.kind]

    def broadcast(self, ctx: ServerContext, state: Surrogate) -> Weights:
        return Weights(state.params)  # line 3

    def reply(self, ctx: ClientContext, images: Tensor, labels: Tensor, loss: float) -> Distilled:
        """The message up: n_k only if the server weights by it."""
        records = ctx.size if self.weighting == "records" else 0
        synthetic = SyntheticSet(images.flatten(0, 1), labels.to(images.device))
        return Distilled(synthetic, records, loss)  # line 9

    def server(
        self, ctx: ServerContext, state: Surrogate, replies: Sequence[Reply[Distilled]]
    ) -> Surrogate:
        pools = (*state.memory, self.pool(self.arrived(replies)))  # line 10
        params = fit(  # line 11
            ctx.task,
            state.params,
            torch.cat([pool.images for pool in pools]),
            torch.cat([pool.labels for pool in pools]),
            ctx.rng.at("fit"),
            self.training,
            iterations=self.steps_on(ctx.task),
            weights=torch.cat([pool.weights for pool in pools]),
            radius=self.radius,
            progress=ctx.progress,
        )
        return Surrogate(params, pools[len(pools) - self.memory :] if self.memory else ())

    @property
    def training(self) -> Training:
        """The server's training on the images."""
        return self.training_for(self.server_epochs or 1)

    def pool(self, replies: Sequence[Reply[Distilled]]) -> Pool:
        """The union of the sets, all images equal or all images of a client together n_k / n
        (eq. 10)."""
        if self.weighting == "union":
            return pooled(replies)
        sizes = torch.tensor([len(reply.message.synthetic) for reply in replies])
        total = sum(reply.message.records for reply in replies)
        shares = [r.message.records / total / len(r.message.synthetic) for r in replies]
        weights = torch.tensor(shares).repeat_interleave(sizes) * int(sizes.sum())
        return pooled(replies, weights.to(replies[0].message.synthetic.images.device))

    def params(self, state: Surrogate) -> Params:
        return state.params

    def synthetic(
        self, state: Surrogate, replies: Sequence[Reply[Distilled]]
    ) -> dict[int, SyntheticSet]:
        """The sets of this round as the server trains on them, for the run folder."""
        return {reply.client: reply.message.synthetic for reply in self.arrived(replies)}

    def report(self, state: Surrogate, replies: Sequence[Reply[Distilled]]) -> dict[str, float]:
        """Mean matching loss of the clients at the end of their iterations."""
        return {"matching_loss": sum(r.message.loss for r in replies) / len(replies)}
