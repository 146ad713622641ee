"""FedDualMatch: "Heterogeneous Federated Learning: A Dual Matching Dataset Distillation Approach"
(anonymous submission): distribution matching at the clients, gradient matching at the server.

    1   server: w <- init;  R <- R_0
    2   for each round:
    3       send w and R to the sampled clients
    4       client k: S_k <- standard normal noise, images_per_class for every class it holds
                  (warm_start: those of its last round)
    5       for layer p = last, ..., first (the same number of iterations each):
    6           w' <- w + a random step of length at most R, newly drawn per iteration
    7           S_k <- S_k - eta * pixel gradient of sum_{q >= p} sum_class |mean difference|^2,
                      steps_per_draw times (the paper: once)
    8       client k: send S_k
    9       server: S <- union of all S_k
    10      server: R <- max_k |eta_r (grad L(w; S_k) - grad L(w; S))|
    11      server: S'_k <- S_k;  M times:
    12          w_g <- w + a random step of length at most R
    13          some SGD steps on every S'_k of dist(grad L(w_g; S), grad L(w_g; S'_k))
    14      server: w <- T_g SGD steps of eta_m on the loss over the union of all S_k and S'_k
                  (memory: and of the S_k of earlier rounds)

The paper's values: R_0 = 5, 200 iterations, pixel learning rate 1, batch 256, M = 10 with 10 steps
of 0.1 each, T_g = 500 with eta_m = 0.001; 20 rounds. In its text lines 13 and 14 alternate, its
algorithm box fine-tunes once, after the M rounds: this file follows the box. Its formula has plain
Euclidean norms, of which no step of length 1 brings the images near; they are read as FedDM's
squared ones, and ``squared = false`` is the formula as printed. The distance of line 13 is DC's
(sum over rows of 1 - cosine, without vectors). The eta of line 10 is ambiguous. Its theorem sets
the rate to c / T_g, and R to c times the difference: so eta_r = c = eta_m T_g, the length of a
whole fit instead of one step of it. With the paper's values that is 0.5, the default of
``radius_step`` also where the server's fit is longer: a radius that grows with it does harm.

With privacy on line 4 is unchanged; the real side of line 7 is one noisy release per iteration, as
in FedDM (``target``, ``release_steps``), of the concatenation of the layers matched in it. Lines 9
to 14 see only sanitised sets. The paper's noise, divided by |S_k|, is not used: |S_k| is no
sensitivity. Without ``squared``, the mean of the records' gradients is not the gradient of the norm
of the mean: with ``target = "gradient"`` the sum of the records' distances is minimised.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from msgspec import Meta
from torch import Tensor

from fedstill.methods.shared.distribution_matching import DistributionMatching, MatchingInitial
from fedstill.methods.shared.messages import (
    LOSSES,
    LastSet,
    Region,
    record_range,
    region_schema,
)
from fedstill.methods.shared.server_fit import STEPS, ServerFit
from fedstill.methods.shared.surrogate import Distilled, Pool, pooled
from fedstill.private import PrivateForm
from fedstill.records import SyntheticSet
from fedstill.steps.arithmetic import norm, scaled, subtract
from fedstill.steps.ball import sample_ball
from fedstill.steps.classes import labels_for
from fedstill.steps.distil import PixelOptimiser
from fedstill.steps.fit import fit
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.steps.gradient_matching import gradient_matching_pixels
from fedstill.steps.matching import Matching
from fedstill.steps.training import Schedule
from fedstill.steps.warp import ImageAugment, chosen_augment
from fedstill.types import ClientContext, Method, Params, Reply, ServerContext, Task
from fedstill.wire import Schema


@dataclass(frozen=True)
class DualMatched:
    """Server state: the weights, the radius around them, and the sets of earlier rounds, oldest
    first."""

    params: Params
    radius: float
    memory: tuple[Pool, ...] = ()


@dataclass(frozen=True)
class FedDualMatch(
    DistributionMatching, ServerFit, Method[DualMatched, Region, LastSet | None, Distilled]
):
    """FedDM layer by layer, and a server that also matches the clients' gradients."""

    sends_sets: ClassVar[bool] = True
    heeds_trust: ClassVar[bool] = True
    PRIVATE_DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "iterations": 20,
        # Measured with this training, as FedDM's.
        "radius_step": 2.0,
        "server_iterations": 100,
        "server_batch": 256,
        "server_schedule": "constant",
        "server_augment": "none",
        "server_balanced": False,
    }

    images_per_class: Annotated[int, Meta(ge=1)] = 10
    initial: MatchingInitial = "noise"
    warm_start: bool = False
    iterations: Annotated[int, Meta(ge=0)] = 30
    steps_per_draw: Annotated[int, Meta(ge=1)] = 4  # from noise; the paper: 1
    layer_wise: bool = True  # off: FedDM's features and logits in every iteration
    squared: bool = True  # off: plain Euclidean distances, as printed
    real_batch: Annotated[int, Meta(ge=1)] = 64
    pixel_optimiser: PixelOptimiser = "adam"
    pixel_learning_rate: Annotated[float, Meta(gt=0)] = 0.1
    pixel_momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    radius: Annotated[float, Meta(ge=0)] = 5.0  # R_0
    adaptive_radius: bool = True  # off: R_0 in every round
    radius_step: Annotated[float, Meta(gt=0)] = 0.5  # eta_r
    radius_noise: Annotated[float, Meta(ge=0)] = 0.0  # sigma_r
    gradient_matching: bool = True
    gradient_rounds: Annotated[int, Meta(ge=1)] = 2  # M
    gradient_steps: Annotated[int, Meta(ge=1)] = 5
    gradient_learning_rate: Annotated[float, Meta(gt=0)] = 0.1
    memory: Annotated[int, Meta(ge=0)] = 0  # earlier rounds whose images are trained on too
    # T_g, at server_learning_rate (eta_m); None: as many as FedDM's. The paper: 500 of 256 images.
    server_iterations: Annotated[int, Meta(ge=1)] | None = None
    # Few images must teach much: chosen by measurement (docs/measurements.md).
    server_batch: Annotated[int, Meta(ge=1)] = 32
    server_schedule: Schedule = "cosine"
    server_augment: ImageAugment = "auto"
    server_balanced: bool = True

    def private_form(self, rate: float) -> PrivateForm:
        return PrivateForm(self.iterations, self.matching_leaks)

    def init(self, ctx: ServerContext) -> DualMatched:
        return DualMatched(ctx.first_weights(), self.radius)  # line 1

    def init_client(self, task: Task) -> LastSet | None:
        return LastSet() if self.warm_start else None

    def download(self, task: Task) -> Schema[Region]:
        return region_schema(task)

    def upload(self, task: Task) -> Schema[Distilled]:
        chosen_augment(self.server_augment, task)  # refuses what does not fit the records
        self.refuse_unless_sent_as_levels(task)
        numbers = {"records": record_range(task, False), "loss": LOSSES}
        return Schema(Distilled, self.image_specs(task, self.images_per_class), numbers)

    def steps_on(self, task: Task) -> int:
        """T_g."""
        return self.server_iterations or STEPS[task.kind]

    def broadcast(self, ctx: ServerContext, state: DualMatched) -> Region:
        return Region(state.params, state.radius)  # line 3

    def client(
        self, ctx: ClientContext, message: Region, state: LastSet | None
    ) -> tuple[Distilled, LastSet | None]:
        number, params = self.images_per_class, message.params
        plan = self.plan(ctx.task.model.outputs(params, ctx.task.shape))
        last = state.images if state else None
        made = self.match(ctx, params, message.radius, number, plan, last)  # lines 4 to 7
        labels = labels_for(made.held, number).to(made.images.device)
        synthetic = SyntheticSet(made.images.flatten(0, 1), labels)
        kept = LastSet(made.images) if self.warm_start else None
        return Distilled(synthetic, 0, made.loss), kept  # line 8

    def plan(self, outputs: int) -> list[Matching]:
        """What each iteration matches: the logits first, then one more layer per stage."""
        fused = self.compile == "on"
        if not self.layer_wise:
            return [Matching(2, self.squared, fused)] * self.iterations
        return [
            Matching(1 + i * outputs // self.iterations, self.squared, fused)
            for i in range(self.iterations)
        ]

    def server(
        self, ctx: ServerContext, state: DualMatched, replies: Sequence[Reply[Distilled]]
    ) -> DualMatched:
        replies = self.arrived(replies)
        sets = {reply.client: reply.message.synthetic for reply in replies}
        pool = pooled(replies)  # line 9
        trust = {reply.client: reply.trust for reply in replies}
        radius = self.next_radius(ctx, state.params, sets, pool, trust)
        pools = (*state.memory, pool)
        trained = pools
        if self.gradient_matching:
            trained = (*pools, self.align(ctx, state.params, radius, sets, pool))
        params = fit(  # line 14
            ctx.task,
            state.params,
            torch.cat([pool.images for pool in trained]),
            torch.cat([pool.labels for pool in trained]),
            ctx.rng.at("fit"),
            self.training_for(),
            iterations=self.steps_on(ctx.task),
            weights=torch.cat([pool.weights for pool in trained]),
            progress=ctx.progress,
        )
        return DualMatched(params, radius, pools[len(pools) - self.memory :] if self.memory else ())

    def next_radius(
        self,
        ctx: ServerContext,
        params: Params,
        sets: dict[int, SyntheticSet],
        pool: Pool,
        trust: dict[int, float],
    ) -> float:
        """Line 10: the largest distance between a step on one client's images and a step on all."""
        if not self.adaptive_radius:
            return self.radius
        weights = tracked(params)

        def gradient(images: Tensor, labels: Tensor, shares: Tensor | None = None) -> Params:
            parts, _ = batch_gradient(ctx.task, weights, images, labels, shares)
            return dict(zip(weights, parts, strict=True))

        common = gradient(pool.images, pool.labels, pool.weights)
        distances = [
            norm(scaled(subtract(gradient(s.images, s.labels), common), self.radius_step))
            * trust[client]
            for client, s in sets.items()
        ]
        noise = torch.randn((), generator=ctx.rng.at("radius").torch()) * self.radius_noise
        return max(0.0, float(torch.stack(distances).max()) + float(noise))

    def align(
        self,
        ctx: ServerContext,
        params: Params,
        radius: float,
        sets: dict[int, SyntheticSet],
        pool: Pool,
    ) -> Pool:
        """Lines 11 to 13: copies of the sets whose gradients agree with the union's."""
        images: dict[int, Tensor] = {client: s.images.clone() for client, s in sets.items()}
        stream = ctx.rng.at("gradient matching").torch()
        for _ in range(self.gradient_rounds):
            weights = sample_ball(params, radius, stream)
            target, _ = batch_gradient(
                ctx.task, tracked(weights), pool.images, pool.labels, pool.weights
            )
            for client, aligned in images.items():
                for _ in range(self.gradient_steps):
                    pixel_gradient, _ = gradient_matching_pixels(
                        ctx.task, weights, aligned, sets[client].labels, target
                    )
                    aligned.sub_(pixel_gradient, alpha=self.gradient_learning_rate)
        return replace(pool, images=torch.cat([images[client] for client in sorted(images)]))

    def params(self, state: DualMatched) -> Params:
        return state.params

    def synthetic(
        self, state: DualMatched, replies: Sequence[Reply[Distilled]]
    ) -> dict[int, SyntheticSet]:
        """The sets of this round, for the run folder."""
        return {reply.client: reply.message.synthetic for reply in self.arrived(replies)}

    def report(self, state: DualMatched, replies: Sequence[Reply[Distilled]]) -> dict[str, float]:
        """The radius for the next round, and the clients' mean matching loss."""
        loss = sum(reply.message.loss for reply in replies) / len(replies)
        return {"radius": state.radius, "matching_loss": loss}
