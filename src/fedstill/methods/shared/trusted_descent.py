"""The server's side of Fed-GLOSS: descent on the clients' images within a trusted radius.

Lines of the pseudo-code in ``fedgloss.py`` are cited by their numbers.
"""

import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from msgspec import Meta
from torch import Tensor

from fedstill.methods.shared.messages import (
    LOSSES,
    Region,
    record_range,
    region_schema,
    set_specs,
)
from fedstill.methods.shared.pixels import PixelSettings
from fedstill.methods.shared.server_fit import augment_choice
from fedstill.methods.shared.weighting import weighting_leaks
from fedstill.private import Leak
from fedstill.records import SyntheticSet
from fedstill.rng import Rng
from fedstill.steps.arithmetic import add, norm, subtract, weighted_sum
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.steps.gradient_matching import Criterion
from fedstill.steps.matching import same
from fedstill.steps.training import Decay, decayed
from fedstill.steps.warp import ImageAugment, augmentations, chosen_augment
from fedstill.types import C, Method, Params, Reply, ServerContext, Task
from fedstill.wire import Schema, TensorSpec
from fedstill.wire.schema import Range

RadiusChoice = Literal["min", "median", "max", "constant", "fixed"]


@dataclass(frozen=True)
class Approximation:
    """Up: a synthetic set, the client's number of records (0 unless the server weights by it), the
    radius r_k and the matching loss. ``norms``: of the real gradient, only if ``calibrated``."""

    synthetic: SyntheticSet
    records: int
    radius: float
    loss: float
    norms: Tensor | None = None


@dataclass(frozen=True)
class Global:
    """Server state: the weights, and the last round's radius, distance and steps."""

    params: Params
    radius: float = 0.0  # r_g
    moved: float = 0.0
    iterations: int = 0


@dataclass(frozen=True)
class TrustedDescent(PixelSettings, Method[Global, Region, C, Approximation]):
    """The server's side of Fed-GLOSS: gradient descent within the radius the clients measured."""

    sends_sets: ClassVar[bool] = True
    heeds_trust: ClassVar[bool] = True

    images_per_class: Annotated[int, Meta(ge=1)] = 10  # the paper: 50
    criterion: Criterion = "cosine+mse"  # "calibrated" would leak: for analysis only
    radius: Annotated[float, Meta(gt=0)] = 10.0  # r
    # r_g. "constant" (r for all) and "fixed" (fixed_iterations) measure no radius.
    radius_choice: RadiusChoice = "min"
    fixed_iterations: Annotated[int, Meta(ge=1)] = 100
    # Of line 12, if r_g is not reached; the authors' code: 100.
    most_iterations: Annotated[int, Meta(ge=1)] = 500
    # In every training on images (lines 8, 9 and 12); the authors' code: "dsa".
    server_augment: ImageAugment = "none"
    server_learning_rate: Annotated[float, Meta(gt=0)] = 0.2  # eta in round 1; the paper: 0.01
    decay: Decay = "cosine"  # of eta, over the rounds
    # Of the decay; None: the run's. Set, a run is the beginning of one with so many rounds.
    decay_rounds: Annotated[int, Meta(ge=1)] | None = None
    weighting: Literal["records", "uniform"] = "records"

    @property
    def size_leaks(self) -> tuple[Leak, ...]:
        return weighting_leaks(self.weighting)

    def init(self, ctx: ServerContext) -> Global:
        return Global(ctx.first_weights())  # line 1

    def download(self, task: Task) -> Schema[Region]:
        return region_schema(task)

    def upload(self, task: Task) -> Schema[Approximation]:
        chosen_augment(self.server_augment, task)  # refuses what does not fit the records
        tensors = set_specs(task, self.images_per_class, "synthetic")
        if self.criterion == "calibrated":
            norms = (len(task.model.shapes),)
            most = task.limits.norm
            tensors["norms"] = TensorSpec(norms, low=0.0, high=most, setting="wire.max_norm")
        records = record_range(task, self.weighting == "records")
        numbers: dict[str, Range] = {
            "records": records,
            "radius": (0.0, self.radius),
            "loss": LOSSES,
        }
        return Schema(Approximation, tensors, numbers)

    def choices(self, task: Task) -> Mapping[str, str]:
        return augment_choice(self.server_augment, task)

    def broadcast(self, ctx: ServerContext, state: Global) -> Region:
        return Region(state.params, self.radius)  # line 3

    @property
    def measured(self) -> bool:
        """Whether clients measure the radius r_k on their records."""
        return self.radius_choice in ("min", "median", "max")

    def learning_rate(self, task: Task, number: int) -> float:
        """eta in this round: cosine decay from its first value to 0 over the rounds."""
        rounds = self.decay_rounds or task.rounds
        return decayed(self.server_learning_rate, self.decay, number, rounds)

    def augmentations(self, task: Task, rng: Rng) -> Callable[[], Callable[[Tensor], Tensor]]:
        """Draws the augmentation of one training step after another."""
        return augmentations(self.server_augment, task, rng.torch(), flip=self.flip)

    def server(
        self, ctx: ServerContext, state: Global, replies: Sequence[Reply[Approximation]]
    ) -> Global:
        radius = self.global_radius(replies)  # line 11
        fixed = self.radius_choice == "fixed"
        most = self.fixed_iterations if fixed else self.most_iterations
        eta = self.learning_rate(ctx.task, ctx.round)
        shares = self.shares(replies)
        augment = self.augmentations(ctx.task, ctx.rng.at("server augment"))
        weights, moved, steps = state.params, 0.0, 0
        while steps < most and (fixed or moved < radius):  # line 12
            gradient = self.gradient(ctx.task, weights, replies, shares, augment())
            weights = add(weights, gradient, -eta)
            moved = float(norm(subtract(weights, state.params)))
            steps += 1
            ctx.progress(steps, most)
        if not fixed and moved < radius:
            warnings.warn(
                f"radius not reached: in some rounds {most} server steps end within it; raise "
                "method.server_learning_rate or method.most_iterations",
                stacklevel=2,
            )
        return Global(weights, radius, moved, steps)

    def global_radius(self, replies: Sequence[Reply[Approximation]]) -> float:
        """r_g: how far the server may move. With ``fixed`` it is not used."""
        if not self.measured:
            return self.radius
        radii = [reply.message.radius for reply in replies]
        if self.radius_choice == "median":
            return statistics.median(radii)
        return min(radii) if self.radius_choice == "min" else max(radii)

    def shares(self, replies: Sequence[Reply[Approximation]]) -> list[float]:
        """Weight of each client in line 12: n_k / n, or equal, times the trust in it."""
        uniform = self.weighting == "uniform"
        weights = [(1.0 if uniform else r.message.records) * r.trust for r in replies]
        total = sum(weights)
        return [weight / total for weight in weights]

    def gradient(
        self,
        task: Task,
        weights: Params,
        replies: Sequence[Reply[Approximation]],
        shares: Sequence[float],
        augment: Callable[[Tensor], Tensor] = same,
    ) -> Params:
        """sum_k share_k grad L(w; S_k) over augmented images."""
        if self.criterion == "calibrated":
            parts = [calibrated(task, weights, r.message, augment) for r in replies]
            return weighted_sum(parts, shares)
        # One pass over all images: a client's share is split evenly among its images.
        sets = [reply.message.synthetic for reply in replies]
        images, labels = torch.cat([s.images for s in sets]), torch.cat([s.labels for s in sets])
        sizes = torch.tensor([len(synthetic) for synthetic in sets])
        factors = (torch.tensor(shares) / sizes * len(images)).repeat_interleave(sizes)
        factors = factors.to(images)
        inputs = augment(images)
        gradient, _ = batch_gradient(task, tracked(weights), inputs, labels, factors, mixed=True)
        return dict(zip(weights, gradient, strict=True))

    def params(self, state: Global) -> Params:
        return state.params

    def synthetic(
        self, state: Global, replies: Sequence[Reply[Approximation]]
    ) -> dict[int, SyntheticSet]:
        """The sets of this round, for the run folder."""
        return {reply.client: reply.message.synthetic for reply in replies}

    def report(self, state: Global, replies: Sequence[Reply[Approximation]]) -> dict[str, float]:
        """How far the server moved, the radii, and the clients' mean matching loss."""
        details = {
            "matching_loss": sum(r.message.loss for r in replies) / len(replies),
            "distance": state.moved,
            "server_iterations": float(state.iterations),
        }
        if self.radius_choice == "fixed":
            return details
        details["radius_reached"] = float(state.moved >= state.radius)
        if not self.measured:
            return details
        radii = [reply.message.radius for reply in replies]
        return details | {
            "radius": state.radius,
            "radius_min": min(radii),
            "radius_median": statistics.median(radii),
            "radius_max": max(radii),
        }


def calibrated(
    task: Task,
    weights: Params,
    message: Approximation,
    augment: Callable[[Tensor], Tensor] = same,
) -> Params:
    """The gradient on a client's images, each tensor rescaled to the norm of the real one."""
    images, labels = augment(message.synthetic.images), message.synthetic.labels
    gradient, _ = batch_gradient(task, tracked(weights), images, labels)
    assert message.norms is not None, "the schema requires them"
    norms = message.norms.unbind()
    return {
        name: part * (real / torch.linalg.vector_norm(part).clamp(min=1e-20))
        for name, part, real in zip(weights, gradient, norms, strict=True)
    }
