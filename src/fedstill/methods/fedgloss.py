"""Fed-GLOSS: Wang et al., "Fed-GLOSS-DP: Federated, Global Learning using Synthetic Sets with
Record Level Differential Privacy", 2023 (published later as FedLAP-DP).

    1   server: w <- init
    2   for each round m:
    3       send w^m = w and the largest radius r to the sampled clients
    4       client k: S_k <- images_per_class images per class it holds: records, noise or the
                  images of its last round; their labels stay fixed
    5       R_i times: w <- w^m;  at most 5 times, while |w - w^m| < r:
    6           for each of some real batches: g <- gradient of the loss over the batch at w
    7               R_b times: S_k <- S_k - tau * pixel gradient of dist(g, grad L(w; S_k))
    8           R_l times: w <- w - eta * grad L(w; S_k)
    9       client k: r_k <- distance from w^m at which training on S_k has the smallest real loss
    10      client k: send S_k, r_k, n_k
    11      server: r_g <- min_k r_k  (or their median or maximum)
    12      server: while |w - w^m| < r_g:  w <- w - eta * sum_k (n_k / n) grad L(w; S_k)

The paper's values: (R_i, R_l, R_b, r) = (1, 0, 5, 10), 50 images per class, real batches of 256,
tau = 100, dist = cosine + 0.1 MSE with DSA, eta = 0.01 (0.1 for CIFAR-10) with cosine decay; 60
rounds (200 for CIFAR-10). Its box has one real batch in line 6, the authors' code 40; the code also
divides each tensor's cosine sum by its rows (``normalize_rows``), ends line 12 after 100 steps, and
augments the images in every training step (``server_augment``). r_k is measured after every
epoch of line 9, so it is never 0 and the server makes at least one step. The defaults below are
for a small built-in data set and a laptop, chosen by measurement (docs/measurements.md).

With privacy on (Fed-GLOSS-DP): line 4 is noise or the last round's images, for the classes that are
publicly held; line 6 is one access, a noisy mean of the clipped gradients of a Poisson sample, each
record augmented before its gradient. Line 9 has no private form: r_k = r for all ("constant", as
in the paper's box) or "fixed"; the weights are 1 / K. Where line 5 leaves the radius it restarts
at w^m instead of ending: accesses are R_i * 5 * batches, whatever was released. The paper's
values: (4, 2, 10, 1.5), ten batches, 10 images per class, eta = 0.002, clip and sigma 1; the
authors' released settings have R_b = 5, dist = cosine alone and images carried over.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from msgspec import Meta
from torch import Tensor

from fedstill.methods.shared.messages import LastSet, Region
from fedstill.methods.shared.trusted_descent import Approximation, TrustedDescent
from fedstill.private import Leak, PrivateForm
from fedstill.records import Records, SyntheticSet
from fedstill.steps.arithmetic import norm, subtract
from fedstill.steps.augment import Augment, draw_augmentation
from fedstill.steps.classes import ByClass, Initial, check_images, first_images, labels_for
from fedstill.steps.distil import pixel_optimiser
from fedstill.steps.fit import descend
from fedstill.steps.gradient_matching import (
    distance_of,
    gradient_matching_pixels,
    weight_gradient,
)
from fedstill.steps.per_record import weight_gradients
from fedstill.steps.released import first_noise, initial_leaks
from fedstill.steps.scores import score
from fedstill.types import ClientContext, Params, Task


@dataclass(frozen=True)
class FedGloss(TrustedDescent[LastSet | None]):
    """Clients send images whose gradients match their records'; the server descends on them."""

    PRIVATE_DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "initial": "noise",
        "warm_start": True,
        "trajectories": 4,
        "local_steps": 2,
        "criterion": "cosine",  # the noise has a length, and no MSE term should match it
        "radius": 1.5,
        "real_batches": 10,
        "radius_choice": "constant",
        "weighting": "uniform",
        "server_learning_rate": 0.05,  # the paper's 0.002 does not reach the radius
    }

    initial: Initial = "real"
    warm_start: bool = False  # start from the last round's images
    trajectories: Annotated[int, Meta(ge=0)] = 1  # R_i
    trajectory_steps: Annotated[int, Meta(ge=1)] = 5
    real_batches: Annotated[int, Meta(ge=1)] = 1  # per trajectory step; the authors' code: 40
    pixel_steps: Annotated[int, Meta(ge=0)] = 5  # R_b, per real gradient
    local_steps: Annotated[int, Meta(ge=0)] = 0  # R_l
    pixel_learning_rate: Annotated[float, Meta(gt=0)] = 10.0  # tau; the paper: 100
    mse_weight: Annotated[float, Meta(gt=0)] = 0.1
    normalize_rows: bool = True
    include_vectors: bool = True
    augment: Augment = "dsa"
    radius_epochs: Annotated[int, Meta(ge=1)] = 30  # of line 9, at most; the paper: 100
    # Over which line 9 computes the real loss; the paper: all.
    radius_records: Annotated[int, Meta(ge=1)] | Literal["all"] = 256
    compile: Literal["off", "on"] = "off"  # of the real gradient

    def private_form(self, rate: float) -> PrivateForm:
        accesses = self.trajectories * self.trajectory_steps * self.real_batches
        return PrivateForm(accesses, self.leaks)

    @property
    def leaks(self) -> tuple[Leak, ...]:
        """The settings that would leak records in a private run."""
        leaks = list(initial_leaks(self.initial))
        if self.measured:
            why = "the radius minimises the loss on the records, and is not sanitised"
            remedy = "set method.radius_choice = 'constant', or 'fixed'"
            leaks.append(Leak("radius_choice", self.radius_choice, why, remedy))
        if self.criterion == "calibrated":
            why = "it sends the exact norms of the records' gradient"
            remedy = "set method.criterion = 'cosine+mse'"
            leaks.append(Leak("criterion", self.criterion, why, remedy))
        return tuple(leaks)

    def init_client(self, task: Task) -> LastSet | None:
        return LastSet() if self.warm_start else None

    def client(
        self, ctx: ClientContext, message: Region, state: LastSet | None
    ) -> tuple[Approximation, LastSet | None]:
        held, start = self.start(ctx, None if state is None else state.images)
        labels = labels_for(held, self.images_per_class).to(start.device)
        images, loss, norms = self.approximate(ctx, message, start.flatten(0, 1), labels)
        synthetic = SyntheticSet(images, labels)
        reply = Approximation(
            synthetic,
            ctx.size if self.weighting == "records" else 0,
            self.trusted_radius(ctx, message, synthetic),
            loss,
            norms if self.criterion == "calibrated" else None,
        )
        return reply, LastSet(images.view_as(start)) if self.warm_start else None

    def start(self, ctx: ClientContext, last: Tensor | None) -> tuple[Tensor, Tensor]:
        """Line 4: the classes held, and the initial images, in slot form."""
        number = self.images_per_class
        if ctx.private is not None:
            return ctx.private.classes, first_noise(ctx, number) if last is None else last
        check_images(ctx)
        by_class = ByClass(ctx.records)
        if last is None:
            last = first_images(ctx, by_class, number, self.initial)
        return by_class.held, last

    def approximate(
        self, ctx: ClientContext, region: Region, start: Tensor, labels: Tensor
    ) -> tuple[Tensor, float, Tensor]:
        """Lines 5 to 8: the images, the distance averaged over all steps, and the norms of the last
        real gradient, one per tensor."""
        images = start.detach().clone()
        optimiser = pixel_optimiser(images, self.pixels)
        how = distance_of(
            self.criterion,
            normalize_rows=self.normalize_rows,
            include_vectors=self.include_vectors,
            mse_weight=self.mse_weight,
        )
        batches, changes = ctx.rng.at("batches").torch(), ctx.rng.at("augment").torch()
        inner = self.augmentations(ctx.task, ctx.rng.at("inner augment"))
        eta = self.learning_rate(ctx.task, ctx.round)
        per_step = self.real_batches * self.pixel_steps
        expected = self.trajectories * self.trajectory_steps * per_step
        total, done = torch.zeros((), device=images.device), 0
        norms = torch.zeros(len(region.params), device=images.device)
        for _ in range(self.trajectories):
            weights = region.params
            for _ in range(self.trajectory_steps):
                if float(norm(subtract(weights, region.params))) >= region.radius:
                    if ctx.private is None:
                        break
                    # The number of accesses must not depend on what they released.
                    weights = region.params
                for _ in range(self.real_batches):
                    augment = draw_augmentation(self.augment, changes, flip=self.flip)
                    target = self.real_gradient(ctx, weights, augment, batches)  # line 6
                    norms = torch.stack([torch.linalg.vector_norm(g) for g in target])
                    for _ in range(self.pixel_steps):  # line 7
                        images.grad, distance = gradient_matching_pixels(
                            ctx.task, weights, images, labels, target, how, augment
                        )
                        optimiser.step()
                        total, done = total + distance, done + 1
                        ctx.progress(done, expected)
                for _ in range(self.local_steps):  # line 8
                    weights = descend(ctx.task, weights, images, labels, eta, inner())
        images.grad = None
        return images, max(0.0, float(total) / max(1, done)), norms

    def real_gradient(
        self,
        ctx: ClientContext,
        weights: Params,
        augment: Callable[[Tensor], Tensor],
        generator: torch.Generator,
    ) -> list[Tensor]:
        """Line 6: the only place where matching reads the records."""
        if ctx.private is not None:
            release = ctx.private.noisy_mean(weight_gradients(ctx.task, weights, augment))
            return [release[name] for name in weights]
        positions = torch.randperm(len(ctx.records), generator=generator)[: self.real_batch]
        x, y = ctx.records.take(positions)
        return weight_gradient(ctx.task, weights, augment(x), y, compiled=self.compile == "on")

    def trusted_radius(self, ctx: ClientContext, region: Region, synthetic: SyntheticSet) -> float:
        """Line 9: r_k. Beyond it, lowering the images' loss no longer lowers the records'."""
        if not self.measured:
            return region.radius
        real = self.radius_sample(ctx)
        augment = self.augmentations(ctx.task, ctx.rng.at("radius augment"))
        eta = self.learning_rate(ctx.task, ctx.round)
        weights, radius, smallest = region.params, 0.0, math.inf
        for _ in range(self.radius_epochs):
            images, labels = synthetic.images, synthetic.labels
            weights = descend(ctx.task, weights, images, labels, eta, augment())
            distance = float(norm(subtract(weights, region.params)))
            loss = score(ctx.task, weights, real).loss
            if loss < smallest:
                smallest, radius = loss, distance
            if distance >= region.radius:
                break
        return min(radius, region.radius)

    def radius_sample(self, ctx: ClientContext) -> Records:
        """The records on which line 9 computes the real loss."""
        if self.radius_records == "all":
            return ctx.records
        order = torch.randperm(len(ctx.records), generator=ctx.rng.at("radius").torch())
        index = ctx.records.index[order[: self.radius_records]]
        return dataclasses.replace(ctx.records, index=index)
