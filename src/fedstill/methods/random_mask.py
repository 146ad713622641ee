"""Random masking: the sparsifying baseline of Hu et al., "FedSynth: Gradient Compression via
Synthetic Data in Federated Learning" (2022), after Konecny et al., "Federated Learning:
Strategies for Improving Communication Efficiency" (2016).

    1   server: w <- init
    2   for each round:
    3       send w and a newly drawn mask seed to the sampled clients
    4       client k: u <- FedAvg's update from w
    5       client k: M_k <- a random 1/rate of the coordinates, from the mask seed and k
    6       client k: send the values u[M_k], and n_k
    7       server: M_k from the seed again;  u'_k <- u[M_k] * rate at M_k, 0 elsewhere
    8       server: w <- w + sum_k (n_k / n) u'_k

Positions are never sent: both sides draw them from the seed. Because of the factor ``rate``, the
expectation of u'_k over the masks is u. Each client has its own mask, so that their errors average
out. With rate 1 it is FedAvg.

With privacy on line 4 is DP-FedAvg's: what is masked is a sanitised update, and masks are public.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from msgspec import Meta
from torch import Tensor

from fedstill.methods.shared.compression import coordinates
from fedstill.methods.shared.local_training import LocalTraining
from fedstill.methods.shared.messages import Weights, record_range
from fedstill.methods.shared.weighting import client_weights
from fedstill.rng import Rng
from fedstill.steps.arithmetic import add, scaled
from fedstill.types import ClientContext, Params, Reply, ServerContext, Stateless, Task
from fedstill.wire import NormLimit, Schema, TensorSpec, params_specs

_SEEDS = 2**53  # every integer below it is exact as a double


@dataclass(frozen=True)
class SeededWeights:
    """Down: the weights, and the seed of this round's masks."""

    params: Params
    mask_seed: int


@dataclass(frozen=True)
class MaskedUpdate:
    """Up: the update's values at the mask's coordinates, in their order."""

    values: Tensor
    records: int


def draw_mask(seed: int, client: int, size: int, kept: int) -> Tensor:
    """``kept`` of ``size`` coordinates, ascending; each subset is as likely as any other."""
    generator = Rng(seed).at("mask", client).torch()
    return torch.randperm(size, generator=generator)[:kept].sort().values


@dataclass(frozen=True)
class RandomMask(LocalTraining, Stateless[Weights, SeededWeights, MaskedUpdate]):
    """FedAvg that sends a random part of each update's coordinates."""

    compression: Annotated[float, Meta(ge=1)] = 8.0  # rate: one coordinate in ``rate`` is sent

    def init(self, ctx: ServerContext) -> Weights:
        return Weights(ctx.first_weights())  # line 1

    def kept(self, task: Task) -> int:
        """How many coordinates are sent."""
        return coordinates(task, self.compression)

    def download(self, task: Task) -> Schema[SeededWeights]:
        return Schema(SeededWeights, params_specs(task, "params"), {"mask_seed": (0, _SEEDS)})

    def upload(self, task: Task) -> Schema[MaskedUpdate]:
        return Schema(
            MaskedUpdate,
            {"values": TensorSpec((self.kept(task),))},
            {"records": record_range(task)},
            {"values": NormLimit(task.limits.norm)},
        )

    def broadcast(self, ctx: ServerContext, state: Weights) -> SeededWeights:
        return SeededWeights(state.params, self.mask_seed(ctx))  # line 3

    def mask_seed(self, ctx: ServerContext) -> int:
        """This round's mask seed, the same on every call."""
        return int(ctx.rng.at("mask").numpy().integers(_SEEDS))

    def client(
        self, ctx: ClientContext, message: SeededWeights, state: None
    ) -> tuple[MaskedUpdate, None]:
        update = self.local_update(ctx, message.params)  # line 4
        vector = torch.cat([part.flatten() for part in update.values()])
        mask = draw_mask(message.mask_seed, ctx.client, len(vector), self.kept(ctx.task))  # 5
        return MaskedUpdate(vector[mask.to(vector.device)], ctx.size), None  # line 6

    def server(
        self, ctx: ServerContext, state: Weights, replies: Sequence[Reply[MaskedUpdate]]
    ) -> Weights:
        seed = self.mask_seed(ctx)
        updates = [
            self.unmasked(ctx.task, reply.message.values, seed, reply.client) for reply in replies
        ]
        shares = client_weights(replies, self.weighting)
        return Weights(add(state.params, self.aggregated(updates, shares)))  # line 8

    def unmasked(self, task: Task, values: Tensor, seed: int, client: int) -> Params:
        """Line 7: an unbiased estimate of the client's update."""
        size = task.model.size
        mask = draw_mask(seed, client, size, len(values)).to(values.device)
        vector = values.new_zeros(size).index_copy(0, mask, values)
        parts = vector.split([torch.Size(shape).numel() for shape in task.model.shapes.values()])
        shapes = task.model.shapes.items()
        update = {name: part.view(shape) for (name, shape), part in zip(shapes, parts, strict=True)}
        return scaled(update, size / len(values))

    def params(self, state: Weights) -> Params:
        return state.params

    def report(self, state: Weights, replies: Sequence[Reply[MaskedUpdate]]) -> dict[str, float]:
        """The achieved compression ratio: floats of a whole update / floats sent."""
        size = sum(part.numel() for part in state.params.values())
        return {"compression": size / len(replies[0].message.values)}
