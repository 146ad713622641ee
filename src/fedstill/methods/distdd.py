"""DistDD: "DistDD: Distributed Data Distillation Aggregation through Gradient Matching" (anonymous
submission): the server distils one set from gradients that clients send class by class.

    1   server: S <- images_per_class noise images per class;  theta <- init
    2   for each round t (one iteration of the distillation):
    3       send theta to the sampled clients
    4       client i: for every class c it holds: g_{c,i} <- gradient at theta of the mean loss on a
                  mini-batch of c;  send all of them
    5       server: for every class c received: G_c <- mean (sum, robust rule) of the g_{c,i}
    6           steps_s times: B <- synthetic_batch images of S_c;
                               B <- B - eta_s * pixel gradient of dist(G_c, grad L(theta; B))
    7       server: theta <- steps_theta SGD steps on L(theta; S)                     (eq. 7)
    8       server: every restart_every rounds: theta <- init
    9   server, after the last round: theta <- a new network trained on S

The product is S: the accuracy reported is the mean of ``fresh_networks`` networks that were trained
on S alone (every ``fresh_every`` rounds and after the last), with their spread among the details.

The paper's values: 20 clients (50 in its large table), half of them per round, 500 rounds, 100
images per class; it gives no learning rates. The defaults below are for a laptop, chosen by
measurement (docs/measurements.md).

As printed it is ``aggregate = "sum"`` (eq. 3, line 14) with ``distance = "mse"`` (eq. 27). The two
contradict each other: the gradient of S_c is a mean over images, so the squared distance to a sum
over n clients asks for a gradient n times too long, and n differs from class to class and round to
round. The defaults are the mean and DC's cosines, which do not depend on the length. Line 20 of
the box, "theta <- G", is read as a misprint of eq. 7. The images of a class that no sampled client
holds, or fewer clients than ``krum`` needs, are not updated.

Each client uploads (classes it holds) x (weights of the model) floats per round: far more than
FedAvg. In return, any later experiment on S needs no further communication.

With privacy on line 4 is one access: noisy sums per class of the clipped gradients of one Poisson
sample of all the client's records, divided by their noisy counts (or, with
privacy.class_counts = "public", by an even share of the expected batch), for every class that is
publicly held. ``real_batch`` is not used. Lines 5 to 9 see only sanitised gradients.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from msgspec import Meta
from torch import Tensor

from fedstill.methods.shared.fresh import FreshNetworks
from fedstill.methods.shared.messages import Weights, weights_schema
from fedstill.private import PrivateForm
from fedstill.records import SERVER, Records, SyntheticSet
from fedstill.steps.aggregate import Aggregating
from fedstill.steps.class_gradients import (
    ClassMatching,
    class_gradients,
    match_class,
    released_class_gradients,
)
from fedstill.steps.classes import check_images
from fedstill.steps.fit import fit
from fedstill.steps.from_scratch import train_from_scratch
from fedstill.steps.gradient_matching import distance_of
from fedstill.steps.training import Training, initial_weights
from fedstill.types import ClientContext, Evaluation, Params, Reply, ServerContext, Stateless, Task
from fedstill.wire import NormLimit, Schema, TensorSpec


@dataclass(frozen=True)
class ClassGradients:
    """Up: the classes held, ascending, and one gradient per class (in the first dimension)."""

    classes: Tensor
    gradients: Params

    def __post_init__(self) -> None:
        if any(len(g) != len(self.classes) for g in self.gradients.values()):
            raise ValueError("not one gradient per class")
        if bool((self.classes.diff() <= 0).any()):
            raise ValueError("the classes are not in ascending order")


@dataclass(frozen=True)
class Distillation:
    """Server state: the matching network, and the set [classes, images per class, ...]."""

    params: Params
    images: Tensor
    distance: float  # mean over the classes of the last round, before its pixel steps
    matched: int  # classes that were matched in the last round
    due: bool  # whether the set is stored and evaluated this round


@dataclass(frozen=True)
class DistDD(Aggregating, FreshNetworks, Stateless[Distillation, Weights, ClassGradients]):
    """The server distils one set from class-wise gradients; the set is the product."""

    images_per_class: Annotated[int, Meta(ge=1)] = 10  # the paper: 100
    real_batch: Annotated[int, Meta(ge=1)] = 256  # records per class gradient
    steps_s: Annotated[int, Meta(ge=1)] = 10
    pixel_learning_rate: Annotated[float, Meta(gt=0)] = 0.5  # eta_s
    pixel_momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.5  # within a round
    steps_theta: Annotated[int, Meta(ge=0)] = 20
    theta_learning_rate: Annotated[float, Meta(gt=0)] = 0.02
    theta_batch: Annotated[int, Meta(ge=1)] = 256
    restart_every: Annotated[int, Meta(ge=0)] = 0  # 0: never
    synthetic_batch: Annotated[int, Meta(ge=1)] | None = None  # images per pixel step; None: all
    distance: Literal["cosine", "cosine+mse", "mse"] = "cosine"  # the paper: mse
    mse_weight: Annotated[float, Meta(gt=0)] = 1.0  # of the squared part, where there is one
    normalize_rows: bool = False  # of the cosines

    def private_form(self, rate: float) -> PrivateForm:
        return PrivateForm(accesses=1)

    def init(self, ctx: ServerContext) -> Distillation:
        task = ctx.task
        shape = (task.classes, self.images_per_class, *task.shape)
        noise = torch.randn(shape, generator=ctx.rng.at("images").torch())
        return Distillation(self.theta(ctx), noise.to(task.device), 0.0, 0, False)  # line 1

    def theta(self, ctx: ServerContext) -> Params:
        """A newly initialised matching network."""
        return initial_weights(ctx.task, ctx.rng.at("init"))

    def download(self, task: Task) -> Schema[Weights]:
        return weights_schema(task)

    def upload(self, task: Task) -> Schema[ClassGradients]:
        held = (1, task.classes)
        gradients = {
            f"gradients.{name}": TensorSpec((held, *shape))
            for name, shape in task.model.shapes.items()
        }
        classes = TensorSpec((held,), torch.int64, 0, task.classes - 1)
        # As if every class's gradient had the largest norm.
        norms = {"gradients": NormLimit(task.limits.norm * math.sqrt(task.classes))}
        return Schema(ClassGradients, {"classes": classes, **gradients}, norms=norms)

    def broadcast(self, ctx: ServerContext, state: Distillation) -> Weights:
        return Weights(state.params)  # line 3

    def client(
        self, ctx: ClientContext, message: Weights, state: None
    ) -> tuple[ClassGradients, None]:
        if ctx.private is None:
            check_images(ctx)
            found = class_gradients(ctx, message.params, self.real_batch)
        else:
            found = released_class_gradients(ctx.task, message.params, ctx.private)
        return ClassGradients(*found), None  # line 4

    def server(
        self, ctx: ServerContext, state: Distillation, replies: Sequence[Reply[ClassGradients]]
    ) -> Distillation:
        images, targets = state.images.clone(), self.targets(replies)
        total = 0.0
        for step, (label, target) in enumerate(targets.items()):
            generator = ctx.rng.at("batches", label).torch()
            images[label], distance = match_class(  # line 6
                ctx.task, state.params, images[label], label, target, self.matching, generator
            )
            total += distance
            ctx.progress(step + 1, len(targets))
        last = ctx.round == ctx.task.rounds
        due = last or ctx.round % self.fresh_every == 0
        params = self.next_theta(ctx, state.params, images, last)
        return Distillation(params, images, total / max(1, len(targets)), len(targets), due)

    def targets(self, replies: Sequence[Reply[ClassGradients]]) -> dict[int, Params]:
        """Line 5: the gradient of every class that enough clients hold."""
        by_class: dict[int, list[Params]] = {}
        for reply in replies:
            for row, label in enumerate(reply.message.classes.tolist()):
                gradient = {name: g[row] for name, g in reply.message.gradients.items()}
                by_class.setdefault(label, []).append(gradient)
        few = sorted(c for c, vectors in by_class.items() if len(vectors) < self.least_vectors)
        if few:
            warnings.warn(
                f"{self.aggregate} with byzantine = {self.byzantine} needs {self.least_vectors} "
                f"clients per class; in some rounds fewer hold class {few[0]}, and its images are "
                "then not updated",
                stacklevel=2,
            )
        return {
            label: self.aggregated(vectors, [1 / len(vectors)] * len(vectors))
            for label, vectors in sorted(by_class.items())
            if label not in few
        }

    @property
    def matching(self) -> ClassMatching:
        """The settings of line 6. Eq. 27 is over all weights; DC's cosines leave vectors out."""
        distance = distance_of(
            self.distance,
            normalize_rows=self.normalize_rows,
            include_vectors=self.distance == "mse",
            mse_weight=self.mse_weight,
        )
        rate, momentum = self.pixel_learning_rate, self.pixel_momentum
        return ClassMatching(distance, self.steps_s, rate, momentum, self.synthetic_batch)

    def next_theta(self, ctx: ServerContext, params: Params, images: Tensor, last: bool) -> Params:
        """The network of the next round: lines 7 to 9."""
        synthetic = _as_set(images)
        if last:
            return train_from_scratch(ctx.task, synthetic, ctx.rng.at("fresh"), self.training)
        if self.restart_every and ctx.round % self.restart_every == 0:
            return self.theta(ctx)
        return fit(
            ctx.task,
            params,
            synthetic.images,
            synthetic.labels,
            ctx.rng.at("fit"),
            Training(self.theta_learning_rate, batch_size=self.theta_batch),
            iterations=self.steps_theta,
        )

    def params(self, state: Distillation) -> Params:
        return state.params

    def evaluate(self, ctx: ServerContext, state: Distillation, test: Records) -> Evaluation:
        """Accuracy of networks trained on the set, in the rounds in which it is evaluated."""
        if not state.due:
            return Evaluation(None, None)
        return self.worth(ctx, _as_set(state.images), test)

    def synthetic(
        self, state: Distillation, replies: Sequence[Reply[ClassGradients]]
    ) -> dict[int, SyntheticSet]:
        """The server's set, in the rounds in which it is evaluated."""
        return {SERVER: _as_set(state.images)} if state.due else {}

    def report(
        self, state: Distillation, replies: Sequence[Reply[ClassGradients]]
    ) -> dict[str, float]:
        """Distance of the set's gradients from the clients', and the number of classes matched."""
        return {"matching_distance": state.distance, "classes_matched": float(state.matched)}


def _as_set(images: Tensor) -> SyntheticSet:
    labels = torch.arange(len(images), device=images.device).repeat_interleave(images.shape[1])
    return SyntheticSet(images.flatten(0, 1), labels)
