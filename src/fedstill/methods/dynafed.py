"""DynaFed: Pi et al., "DYNAFED: Tackling Client Data Heterogeneity with Global Dynamics",
CVPR 2023.

    1   server: w_0 <- init
    2   for each round r = 1, 2, ...:
    3       FedAvg's round: w_r <- the average of the clients' models
    4       r = R: the server learns a set S = (images, soft labels, rate alpha) from w_0 .. w_R:
    5           N times:
    6               pick i in 0 .. R - L;  w' <- w_i;  w* <- w_{i+L}  (averaged_targets: the mean
                    of k models drawn from w_{i+1} .. w_{i+L} with replacement, k from 2 .. L)
    7               s times:  w' <- w' - alpha * gradient of the loss over a batch of S
    8               S <- S - a step along the gradient of |w' - w*|^2 / |w_i - w*|^2
    9       r >= R: w_r <- T steps as in line 7 from w_r  (tuning_optimiser: by Adam)

The clients train and send as in FedAvg; the set costs no upload. The trajectory of the global model
reflects the clients' data as a whole, and training on the set corrects an average that has drifted.
Under strong skew each single model of the trajectory leans towards some clients; an average of
several leans less, and is the better target. The server has no records: images start from noise,
labels at probability 0.9 of their class, or at equal probabilities (``initial_labels``). alpha is
learnt as a logarithm, so it stays positive. With ``augment`` each batch of lines 7 and 9 is
transformed at random (DSA).

The authors' script for CIFAR-10 at Dirichlet 0.01: R = 24 (25 models), N = 3000, L = 3, s = 20 on
all 15 images per class, rates 0.05 (images) and 0.01 (labels), alpha from 0.04, averaged targets,
equal probabilities, DSA, T = 20 by Adam of 0.0001, uniform weights of the clients.

With privacy on line 3 is DP-FedAvg's. The set is learnt from the models of its rounds alone, so
lines 4 to 9 cost no privacy budget.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from msgspec import Meta
from torch import Tensor

from fedstill.errors import RequestError, RunError
from fedstill.methods.shared.local_training import LocalTraining
from fedstill.methods.shared.messages import Update, Weights, update_schema, weights_schema
from fedstill.records import SERVER, SyntheticSet
from fedstill.steps.arithmetic import norm, scaled, subtract, weighted_sum
from fedstill.steps.augment import Augment, draw_augmentation
from fedstill.steps.examples import Example, noise_examples
from fedstill.steps.soft_labels import label_logits, soft_labels, softmax_backward
from fedstill.steps.training import Optimiser
from fedstill.steps.unroll import STEPS, Batches, backward, sgd_steps, unroll
from fedstill.types import ClientContext, Params, Reply, ServerContext, Stateless, Task
from fedstill.wire import Schema


@dataclass(frozen=True)
class LearntSet:
    """S, and the loss of line 8 after its steps (1: no closer to w_{i+L} than w_i is)."""

    images: Tensor
    labels: Tensor
    learning_rate: float
    distance: float


@dataclass(frozen=True)
class Dynamics:
    """Server state: the weights, their trajectory until the set is learnt, and then the set."""

    params: Params
    trajectory: tuple[Params, ...]
    learnt: LearntSet | None = None
    fresh: bool = False  # whether the set was learnt in this round


@dataclass(frozen=True)
class DynaFed(LocalTraining, Stateless[Dynamics, Weights, Update]):
    """FedAvg whose server learns a set from the global model's path, and tunes on it."""

    trajectory_rounds: Annotated[int, Meta(ge=1)] = 8  # R: rounds of plain FedAvg
    span: Annotated[int, Meta(ge=1)] = 2  # L: rounds that the steps on the set replace
    averaged_targets: bool = False  # line 6
    images_per_class: Annotated[int, Meta(ge=1)] = 5
    initial_labels: Literal["classes", "uniform"] = "classes"
    augment: Augment = "none"
    flip: bool = False  # whether DSA may mirror images: never for digits
    matching_iterations: Annotated[int, Meta(ge=1)] = 100  # N
    matching_steps: Annotated[int, Meta(ge=1)] = 10  # s
    matching_batch: Annotated[int, Meta(ge=1)] = 50
    image_learning_rate: Annotated[float, Meta(gt=0)] = 0.1
    label_learning_rate: Annotated[float, Meta(gt=0)] = 0.1
    first_rate: Annotated[float, Meta(gt=0)] = 0.05  # initial alpha
    rate_learning_rate: Annotated[float, Meta(ge=0)] = 0.05  # of its logarithm
    tuning_steps: Annotated[int, Meta(ge=0)] = 20  # T
    tuning_optimiser: Optimiser = "sgd"
    tuning_learning_rate: Annotated[float, Meta(gt=0)] | None = None  # None: alpha

    def __post_init__(self) -> None:
        if self.span > self.trajectory_rounds:
            raise RequestError(
                f"method.span: {self.span} rounds do not fit into a trajectory of "
                f"{self.trajectory_rounds}; lower it or raise method.trajectory_rounds"
            )
        if self.averaged_targets and self.span < 2:
            raise RequestError("method.averaged_targets: method.span must be at least 2")

    def init(self, ctx: ServerContext) -> Dynamics:
        first = ctx.first_weights()
        return Dynamics(first, (first,))  # line 1

    def download(self, task: Task) -> Schema[Weights]:
        return weights_schema(task)

    def upload(self, task: Task) -> Schema[Update]:
        if self.augment != "none" and len(task.model.continuous_shape or task.shape) != 3:
            raise RequestError("method.augment: only images can be augmented; leave it out")
        return update_schema(task)

    def broadcast(self, ctx: ServerContext, state: Dynamics) -> Weights:
        return Weights(state.params)

    def client(self, ctx: ClientContext, message: Weights, state: None) -> tuple[Update, None]:
        return Update(self.local_update(ctx, message.params), ctx.size), None  # line 3

    def server(
        self, ctx: ServerContext, state: Dynamics, replies: Sequence[Reply[Update]]
    ) -> Dynamics:
        average = self.averaged(state.params, replies)  # line 3
        learnt = state.learnt
        if learnt is None:
            trajectory = (*state.trajectory, average)
            if len(trajectory) <= self.trajectory_rounds:
                return Dynamics(average, trajectory)
            learnt = self.learn(ctx, trajectory)  # line 4
        return Dynamics(self.tuned(ctx, average, learnt), (), learnt, state.learnt is None)

    def learn(self, ctx: ServerContext, trajectory: Sequence[Params]) -> LearntSet:
        """Lines 5 to 8."""
        task, stream = ctx.task, ctx.rng.at("matching").torch()
        images, logits = self.start(ctx)
        log_rate = torch.tensor(self.first_rate).log()
        optimiser = torch.optim.Adam(
            [
                {"params": [images], "lr": self.image_learning_rate},
                {"params": [logits], "lr": self.label_learning_rate},
                {"params": [log_rate], "lr": self.rate_learning_rate},
            ]
        )
        for iteration in range(self.matching_iterations):
            first, target = self.ends(trajectory, stream)  # line 6
            rows = self.rows(len(images), self.matching_steps, stream).to(images.device)
            plain = images[rows].requires_grad_(True)
            seen = self.augmented(plain, stream)
            soft, rate = soft_labels(logits), float(log_rate.exp())
            batches = Batches(seen.detach(), soft[rows])
            path = unroll(task, first, batches, rate)  # line 7
            scale = 1 / max(float(norm(subtract(first, target))) ** 2, 1e-30)
            at_end = scaled(subtract(path.end, target), 2 * scale)
            found = backward(task, path, batches, rate, at_end)  # line 8
            soft_gradient = _gathered(found.y, rows, soft)
            by_plain = torch.autograd.grad(seen, plain, found.x)[0]
            images.grad = _gathered(by_plain, rows, images)
            logits.grad = softmax_backward(soft, soft_gradient)
            log_rate.grad = torch.tensor(found.learning_rate * rate)
            optimiser.step()
            ctx.progress(iteration + 1, self.matching_iterations)
        learnt = LearntSet(images.detach(), soft_labels(logits), float(log_rate.exp()), 0.0)
        return self.measured(ctx, learnt, trajectory)

    def ends(self, trajectory: Sequence[Params], stream: torch.Generator) -> tuple[Params, Params]:
        """A random model of the trajectory, and the target of the steps from there: line 6."""
        i = int(torch.randint(len(trajectory) - self.span, (), generator=stream))
        later = trajectory[i + 1 : i + self.span + 1]
        if not self.averaged_targets:
            return trajectory[i], later[-1]
        number = int(torch.randint(2, self.span + 1, (), generator=stream))
        drawn = torch.randint(self.span, (number,), generator=stream).tolist()
        return trajectory[i], weighted_sum([later[j] for j in drawn], [1 / number] * number)

    def augmented(self, batches: Tensor, stream: torch.Generator) -> Tensor:
        """Each step's inputs under a transformation of its own; the same if ``augment`` is off."""
        if self.augment == "none":
            return batches
        changes = [draw_augmentation(self.augment, stream, flip=self.flip) for _ in batches]
        return torch.stack([change(x) for change, x in zip(changes, batches, strict=True)])

    def start(self, ctx: ServerContext) -> tuple[Tensor, Tensor]:
        """``images_per_class`` noise images per class, and the logits of their labels."""
        example = Example.of(ctx.task, soft=True)
        number = self.images_per_class * example.classes
        generator = ctx.rng.at("images").torch()
        images, labels = noise_examples(ctx.task, example, number, generator)
        logits = label_logits(labels, example.classes)
        return images, logits if self.initial_labels == "classes" else torch.zeros_like(logits)

    def rows(self, number: int, steps: int, stream: torch.Generator) -> Tensor:
        """The images of each step: a newly drawn random batch per step."""
        batch = min(self.matching_batch, number)
        orders = [torch.randperm(number, generator=stream)[:batch] for _ in range(steps)]
        return torch.stack(orders) if orders else torch.zeros(0, batch, dtype=torch.int64)

    def batches(self, learnt: LearntSet, steps: int, stream: torch.Generator) -> Batches:
        """The batches of so many steps on the set."""
        rows = self.rows(len(learnt.images), steps, stream).to(learnt.images.device)
        return Batches(self.augmented(learnt.images[rows], stream), learnt.labels[rows])

    def measured(
        self, ctx: ServerContext, learnt: LearntSet, trajectory: Sequence[Params]
    ) -> LearntSet:
        """The set with its mean distance over all spans of the trajectory."""
        stream = ctx.rng.at("measure").torch()
        shares = []
        for first, target in zip(trajectory, trajectory[self.span :], strict=False):
            batches = self.batches(learnt, self.matching_steps, stream)
            end = sgd_steps(ctx.task, first, batches, learnt.learning_rate)
            length = max(float(norm(subtract(first, target))), 1e-30)
            shares.append((float(norm(subtract(end, target))) / length) ** 2)
        distance = sum(shares) / len(shares)
        if not math.isfinite(distance):
            raise RunError(
                "the steps on the learnt set diverge; lower method.first_rate, "
                "method.rate_learning_rate or method.image_learning_rate"
            )
        return replace(learnt, distance=distance)

    def tuned(self, ctx: ServerContext, average: Params, learnt: LearntSet) -> Params:
        """Line 9."""
        batches = self.batches(learnt, self.tuning_steps, ctx.rng.at("tuning").torch())
        rate = self.tuning_learning_rate or learnt.learning_rate
        return STEPS[self.tuning_optimiser](ctx.task, average, batches, rate)

    def params(self, state: Dynamics) -> Params:
        return state.params

    def synthetic(
        self, state: Dynamics, replies: Sequence[Reply[Update]]
    ) -> dict[int, SyntheticSet]:
        """The server's set, in the round in which it was learnt, if it holds images."""
        learnt = state.learnt
        if learnt is None or not state.fresh or learnt.images[0].dim() != 3:
            return {}
        return {SERVER: SyntheticSet(learnt.images, learnt.labels)}

    def report(self, state: Dynamics, replies: Sequence[Reply[Update]]) -> dict[str, float]:
        """Once there is a set: how well it matches the trajectory, and its learning rate."""
        if state.learnt is None:
            return {}
        return {
            "matching_distance": state.learnt.distance,
            "learnt_rate": state.learnt.learning_rate,
        }


def _gathered(gradients: Tensor, rows: Tensor, like: Tensor) -> Tensor:
    """The gradients summed per image: an image is in the batches of several steps."""
    return torch.zeros_like(like).index_add_(0, rows.flatten(), gradients.flatten(0, 1))
