"""Analytic: closed-form learning from sums over all records, in one round.

Linear discriminant analysis, ridge regression or class means on fixed features, from statistics
that add up over clients; as in He et al., "AFL" (CVPR 2025), and Guan et al., "FedCGS" (2025).

    1   client k: f(x) <- the fixed feature vector of each record, of norm 1
    2   for every class c: s_c <- sum of f(x), n_c <- number of records, m_c <- s_c / n_c
    3   A_k <- sum over records of (f(x) - m_c)(f(x) - m_c)^T
    4   send s, n and the upper triangle of A_k
    5   server: B <- sum_k (A_k + sum_c n_c m_c m_c^T), which is the sum of f(x) f(x)^T
    6   solve for the linear layer, from B and the sums of s and n

However the records are partitioned, the sums are the same, and so is the model, up to rounding:
skew does not matter, and a client that is lost costs its records only.

With privacy on: line 2 is one noisy release by class and line 3 another, of all records each. In
line 3 a record is taken relative to the *released* mean of its class, and clipped to a radius that
follows from the same release: records have norm 1, so their mean squared distance from the mean is
1 - |m_c|^2, and the radius is half of its root. Most records are clipped then, which keeps the
directions in which they differ, and noise shrinks with the square of the radius; the length that
was lost is given back on average. Both papers' X^T X would have needed many times the noise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from msgspec import Meta
from torch import Tensor

from fedstill.errors import RequestError, RunError
from fedstill.models.mlp import MLP
from fedstill.private import Private, PrivateForm
from fedstill.steps.closed_form import Head, Moments, solve
from fedstill.steps.statistics import (
    Residuals,
    Scaled,
    class_sums,
    scatter_about,
    symmetric,
    triangle_size,
)
from fedstill.types import ClientContext, Params, Reply, ServerContext, Stateless, Task
from fedstill.wire import Schema, TensorSpec

_LEAST_RADIUS = 0.02  # of the private scatter; vectors have norm 1
# The radius in units of the root mean square distance from the class mean. Chosen on MNIST,
# Fashion-MNIST and CIFAR-10 (docs/measurements.md): 1 is up to a point worse.
_RADIUS_SHARE = 0.5
_MOST_RESCALING = 16.0  # of the clipped scatter


@dataclass(frozen=True)
class Request:
    """Down: nothing but the number of the round."""

    round: int


@dataclass(frozen=True)
class Statistics:
    """Up: sums [classes, size] and counts [classes] by class, the triangle of the scatter about the
    class means (empty where the head needs none), and the standard deviations of the noise in the
    scatter and in the sums."""

    sums: Tensor
    counts: Tensor
    scatter: Tensor
    noise: float
    sums_noise: float


@dataclass(frozen=True)
class Pooled:
    """Server state: everything received so far, pooled, and the layer that follows from it."""

    sums: Tensor
    counts: Tensor
    second: Tensor
    variance: float
    sums_variance: Tensor  # [classes]
    params: Params


@dataclass(frozen=True)
class Analytic(Stateless[Pooled, Request, Statistics]):
    """Clients send sums over their records once; the server solves for a linear classifier."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {"rounds": 1, "model": {"name": "linear"}}
    private_rate: ClassVar[float] = 1.0
    deterministic: ClassVar[bool] = True

    head: Head = "lda"
    penalty: Annotated[float, Meta(ge=0)] = 1e-3  # in units of the mean eigenvalue

    def private_form(self, rate: float) -> PrivateForm:
        return PrivateForm(1 if self.head == "prototype" else 2)

    def statistic_size(self, task: Task) -> int:
        return features_of(task)

    def init(self, ctx: ServerContext) -> Pooled:
        classes, size = ctx.task.classes, features_of(ctx.task)
        nothing = torch.zeros(classes, size, dtype=torch.float64, device=ctx.task.device)
        second = nothing.new_zeros(size, size) if self.head != "prototype" else nothing[:0, :0]
        layer = ctx.first_weights()
        return Pooled(nothing, nothing[:, 0], second, 0.0, nothing[:, 0], layer)

    def download(self, task: Task) -> Schema[Request]:
        return Schema(Request, numbers={"round": (1, task.rounds)})

    def upload(self, task: Task) -> Schema[Statistics]:
        size = features_of(task)
        # A record adds at most 1 to a number; the rest is room for noise.
        most = task.limits.records + task.limits.norm

        def numbers(*shape: int) -> TensorSpec:
            return TensorSpec(shape, low=-most, high=most, setting="wire.max_norm")

        entries = 0 if self.head == "prototype" else triangle_size(size)
        return Schema(
            Statistics,
            {
                "sums": numbers(task.classes, size),
                "counts": numbers(task.classes),
                "scatter": numbers(entries),
            },
            {"noise": (0.0, task.limits.norm), "sums_noise": (0.0, task.limits.norm)},
        )

    def broadcast(self, ctx: ServerContext, state: Pooled) -> Request:
        return Request(ctx.round)

    def client(self, ctx: ClientContext, message: Request, state: None) -> tuple[Statistics, None]:
        if ctx.private is not None:
            return self.released(ctx, ctx.private), None
        sums, counts = class_sums(ctx.records, ctx.task.classes)  # line 2
        scatter = sums.new_zeros(0)
        if self.head != "prototype":
            scatter = scatter_about(ctx.records, _means(sums, counts))  # line 3
        return Statistics(sums.float(), counts.float(), scatter.float(), 0.0, 0.0), None

    def released(self, ctx: ClientContext, door: Private) -> Statistics:
        """Lines 2 and 3 through the private door."""
        classes, size = ctx.task.classes, features_of(ctx.task)
        # Vectors of norm 1 are brought to the clip exactly: none is cut, and no noise is wasted.
        by_class = door.noisy_class_sums(Scaled(door.class_clip))
        sums = torch.zeros(classes, size, device=ctx.task.device)
        counts = sums.new_zeros(classes)
        sums[door.classes] = by_class.sums["sum"] / door.class_clip
        noise = door.sigma * door.clip / door.class_clip
        counts[door.classes] = by_class.counts.clamp(min=1)
        if self.head == "prototype":
            return Statistics(sums, counts, sums.new_zeros(0), 0.0, noise)
        means = _means(sums, counts)
        means = means / means.norm(dim=1, keepdim=True).clamp(min=1)  # no true mean is longer
        spread = self.spread(means, counts, noise)
        clip = max(_LEAST_RADIUS, _RADIUS_SHARE * spread**0.5) ** 2
        scatter = door.noisy_sum(Residuals(means), clip=clip)["scatter"]
        longer = 1.0  # where the means are mostly noise, they do not tell what clipping has cost
        if spread < 1:
            longer = _rescaling(scatter, spread * float(counts.sum()), size)
        # What was subtracted is what the server adds again: sums that agree with these means.
        return Statistics(
            means * counts[:, None], counts, scatter * longer, door.sigma * clip * longer, noise
        )

    def spread(self, means: Tensor, counts: Tensor, noise: float) -> float:
        """The mean squared distance of records from the mean of their class: 1 - |m|^2, where the
        noise in a released mean has made it longer."""
        share = counts / counts.sum().clamp(min=1)
        squares = means.square().sum(1) - means.shape[1] * (noise / counts.clamp(min=1)).square()
        return min(1.0, max(0.0, float((share * (1 - squares)).sum())))

    def server(
        self, ctx: ServerContext, state: Pooled, replies: Sequence[Reply[Statistics]]
    ) -> Pooled:
        sums, counts, second = state.sums.clone(), state.counts.clone(), state.second.clone()
        variance, sums_variance = state.variance, state.sums_variance.clone()
        for reply in replies:  # line 5
            found, number = reply.message.sums.double(), reply.message.counts.double()
            sums += found
            counts += number
            variance += reply.message.noise**2
            sums_variance += (number != 0) * reply.message.sums_noise**2
            if self.head != "prototype":
                means = _means(found, number)
                second += symmetric(reply.message.scatter.double(), second.shape[0])
                second += (means.T * number) @ means
        moments = Moments(sums, counts, second, variance**0.5, sums_variance.sqrt())
        if not bool(moments.held.any()):
            raise RunError("no client has a record: there is nothing to solve for")
        layer = solve(moments, self.head, self.penalty)  # line 6
        return Pooled(sums, counts, second, variance, sums_variance, layer)

    def params(self, state: Pooled) -> Params:
        return state.params

    def report(self, state: Pooled, replies: Sequence[Reply[Statistics]]) -> dict[str, float]:
        """The largest eigenvalue of the noise, relative to the mean eigenvalue of the scatter."""
        size = state.second.shape[0]
        if not size or not state.variance:
            return {}
        level = float(state.second.trace()) / size
        return {"noise_to_scatter": (2 * size * state.variance) ** 0.5 / max(level, 1e-12)}


def features_of(task: Task) -> int:
    """Numbers per feature vector; a network that is not one linear layer is refused."""
    if not isinstance(task.model, MLP) or task.model.depth:
        raise RequestError(
            "model: analytic solves for one linear layer on fixed features; leave the model out, "
            "or set model.name = 'linear' (features: `fedstill list features`)"
        )
    return task.shape[0]


def _rescaling(scatter: Tensor, expected: float, size: int) -> float:
    """What the clipped scatter is multiplied by, so that its trace is the sum of the squared
    distances again: the class means tell it."""
    trace = float(symmetric(scatter, size).trace())
    if not 0 < trace < expected:
        return 1.0
    return min(_MOST_RESCALING, expected / trace)


def _means(sums: Tensor, counts: Tensor) -> Tensor:
    return sums / counts.clamp(min=1)[:, None]
