"""Local gradient matching: every client condenses its records alone, and the server trains on the
union. The condensation is that of Zhao et al., "Dataset Condensation with Gradient Matching" (DC),
ICLR 2021; with ``augment = "dsa"`` that of Zhao and Bilen, "Dataset Condensation with
Differentiable Siamese Augmentation" (DSA), ICML 2021.

    1   client k: S_k <- images_per_class images per class it holds: records or noise
    2   for each round:
    3       client k: for each of some networks: w <- newly initialised
    4           T times:
    5               for every class c: g_c <- gradient of the loss over a batch of its records at w
    6                   S_k,c <- S_k,c - tau * pixel gradient of dist(g_c, grad L(w; S_k,c))
    7               w <- some epochs of SGD on S_k
    8       client k: send S_k
    9       server: w <- SGD from newly initialised weights on the union of all newest S_k

The server's model is sent to nobody: clients initialise their own networks, and S_k is carried over
from round to round. One round suffices for a one-shot federation; more rounds mean more networks,
with the accuracy after each. ``own_sets`` also trains a network on each client's set alone and
reports their mean accuracy.

DC's values: 1000 networks in all; (T, epochs in line 7) = (1, 1), (10, 50), (50, 10) for 1, 10, 50
images per class, learning rate 0.01, momentum 0.5; tau = 0.1, momentum 0.5, real batches of 256;
the final training: 300 epochs (DSA: 1000), learning rate 0.01, momentum 0.9, batches of 256. The
defaults below are for a laptop.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from fedstill.methods.shared.messages import LOSSES, LastSet, record_range, set_specs
from fedstill.methods.shared.pixels import PixelSettings
from fedstill.methods.shared.surrogate import Distilled
from fedstill.records import Records, SyntheticSet, union
from fedstill.rng import Rng
from fedstill.steps.classes import ByClass, Initial, check_images, first_images, labels_of
from fedstill.steps.condense import Condensation, condense
from fedstill.steps.fit import fit
from fedstill.steps.gradient_matching import DC
from fedstill.steps.scores import score
from fedstill.steps.training import Training, initial_weights
from fedstill.types import (
    ClientContext,
    Evaluation,
    Method,
    Params,
    Reply,
    ServerContext,
    Task,
)
from fedstill.wire import Schema


@dataclass(frozen=True)
class Continue:
    """Down: empty; it asks the client for its next round."""


@dataclass(frozen=True)
class Condensed:
    """Server state: a network trained on the sets, and every client's newest set."""

    params: Params
    sets: dict[str, SyntheticSet] = field(default_factory=dict)  # by client


@dataclass(frozen=True)
class LocalGM(PixelSettings, Method[Condensed, Continue, LastSet, Distilled]):
    """Each client condenses its records by gradient matching, alone; the server has the union."""

    sends_sets: ClassVar[bool] = True

    images_per_class: Annotated[int, Meta(ge=1)] = 10
    initial: Initial = "real"
    networks: Annotated[int, Meta(ge=0)] = 1  # per round; the paper: 1000 in all
    matching_steps: Annotated[int, Meta(ge=1)] = 10  # T
    network_epochs: Annotated[int, Meta(ge=1)] = 5  # of line 7; the paper: 50
    network_learning_rate: Annotated[float, Meta(gt=0)] = 0.01
    network_momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.5
    pixel_learning_rate: Annotated[float, Meta(gt=0)] = 0.1  # tau
    server_epochs: Annotated[int, Meta(ge=1)] = 100  # the paper: 300, DSA 1000
    server_learning_rate: Annotated[float, Meta(gt=0)] = 0.02  # the paper: 0.01
    server_momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    batch: Annotated[int, Meta(ge=1)] = 256  # synthetic images per step of a network
    own_sets: bool = False  # also report the mean accuracy over the clients' own sets
    compile: Literal["off", "on"] = "off"  # of the real gradient

    def init(self, ctx: ServerContext) -> Condensed:
        return Condensed(ctx.task.model.init(ctx.rng.at("init").torch()))

    def init_client(self, task: Task) -> LastSet:
        return LastSet()

    def download(self, task: Task) -> Schema[Continue]:
        return Schema(Continue)

    def upload(self, task: Task) -> Schema[Distilled]:
        numbers = {"records": record_range(task, False), "loss": LOSSES}
        return Schema(Distilled, set_specs(task, self.images_per_class, "synthetic"), numbers)

    def broadcast(self, ctx: ServerContext, state: Condensed) -> Continue:
        return Continue()

    def client(
        self, ctx: ClientContext, message: Continue, state: LastSet
    ) -> tuple[Distilled, LastSet]:
        check_images(ctx)
        by_class = ByClass(ctx.records)
        start = state.images
        if start is None:  # line 1
            start = first_images(ctx, by_class, self.images_per_class, self.initial)
        images, loss = condense(ctx, by_class, start, self.plan)  # lines 3 to 7
        labels = labels_of(by_class, self.images_per_class).to(images.device)
        synthetic = SyntheticSet(images.flatten(0, 1), labels)
        return Distilled(synthetic, 0, loss), LastSet(images)  # line 8

    @property
    def plan(self) -> Condensation:
        """The settings of the clients' condensation."""
        return Condensation(
            self.networks,
            self.matching_steps,
            self.training(self.network_epochs, self.network_learning_rate, self.network_momentum),
            self.pixels,
            DC,
            compiled=self.compile == "on",
        )

    def training(self, epochs: int, learning_rate: float, momentum: float) -> Training:
        """Training on synthetic images, with the same augmentation as in matching."""
        augment, flip = self.augment, self.flip
        return Training(learning_rate, momentum, self.batch, epochs, augment=augment, flip=flip)

    def server(
        self, ctx: ServerContext, state: Condensed, replies: Sequence[Reply[Distilled]]
    ) -> Condensed:
        sets = state.sets | {str(reply.client): reply.message.synthetic for reply in replies}
        together = union({int(client): synthetic for client, synthetic in sets.items()})
        return Condensed(self.trained(ctx.task, together, ctx.rng), sets)  # line 9

    def trained(self, task: Task, synthetic: SyntheticSet, rng: Rng) -> Params:
        """A newly initialised network after training on a set."""
        how = self.training(self.server_epochs, self.server_learning_rate, self.server_momentum)
        start = initial_weights(task, rng.at("network"))
        return fit(task, start, synthetic.images, synthetic.labels, rng.at("fit"), how)

    def params(self, state: Condensed) -> Params:
        return state.params

    def evaluate(self, ctx: ServerContext, state: Condensed, test: Records) -> Evaluation | None:
        """The accuracy of the union; with ``own_sets`` also the mean over the clients' sets."""
        if not self.own_sets:
            return None
        union_scores = score(ctx.task, state.params, test)
        alone = [
            score(ctx.task, self.trained(ctx.task, own, ctx.rng.at("alone", client)), test).accuracy
            for client, own in state.sets.items()
        ]
        details = {"accuracy_own_sets": statistics.fmean(alone)}
        return Evaluation(union_scores.accuracy, union_scores.loss, details)

    def synthetic(
        self, state: Condensed, replies: Sequence[Reply[Distilled]]
    ) -> dict[int, SyntheticSet]:
        """Every client's newest set, for the run folder."""
        return {int(client): synthetic for client, synthetic in state.sets.items()}

    def report(self, state: Condensed, replies: Sequence[Reply[Distilled]]) -> dict[str, float]:
        """Mean gradient distance per class over the clients' steps."""
        return {"matching_loss": sum(r.message.loss for r in replies) / len(replies)}
