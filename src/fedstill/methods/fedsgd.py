"""FedSGD: McMahan et al., AISTATS 2017: one gradient over all records per round.

1  server: w <- init
2  for each round:
3      send w to the sampled clients
4      client k: g_k <- gradient at w of the mean loss over all its records
5      server: w <- w - eta sum_k (n_k / n) g_k

``batch_size``: line 4 takes so many records at random instead of all (Fed-GLOSS' baseline).
``aggregate`` replaces line 5's sum with a robust rule (steps/aggregate.py).
With privacy on g_k is a noisy mean of the clipped gradients of one Poisson sample (all records if
privacy.sampling_rate is 1).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from msgspec import Meta

from fedstill.methods.shared.messages import Update, Weights, update_schema
from fedstill.methods.shared.weighting import Weighting, client_weights, weighting_leaks
from fedstill.methods.shared.weights_down import WeightsDown
from fedstill.private import Leak, PrivateForm
from fedstill.records import Records
from fedstill.steps.aggregate import Averaging
from fedstill.steps.arithmetic import add
from fedstill.steps.gradient import full_gradient
from fedstill.steps.per_record import weight_gradients
from fedstill.steps.training import Decay, decayed
from fedstill.types import ClientContext, Reply, ServerContext, Task
from fedstill.wire import Schema


@dataclass(frozen=True)
class FedSGD(Averaging, WeightsDown[Update]):  # lines 1 and 3: WeightsDown
    """One full gradient step per round."""

    PRIVATE_DEFAULTS: ClassVar[Mapping[str, Any]] = {"weighting": "uniform"}

    learning_rate: Annotated[float, Meta(gt=0)] = 0.1  # eta, in round 1
    decay: Decay = "none"  # of eta, over the rounds
    batch_size: Annotated[int, Meta(ge=1)] | None = None  # None: all records
    weighting: Weighting = "records"

    def private_form(self, rate: float) -> PrivateForm:
        return PrivateForm(accesses=1)

    @property
    def size_leaks(self) -> tuple[Leak, ...]:
        return weighting_leaks(self.weighting)

    def upload(self, task: Task) -> Schema[Update]:
        return update_schema(task)

    def client(self, ctx: ClientContext, message: Weights, state: None) -> tuple[Update, None]:
        if ctx.private is None:
            draws = ctx.rng.at("dropout").torch()
            gradient, _ = full_gradient(ctx.task, message.params, self.batch(ctx), draws)  # line 4
        else:
            of_records = weight_gradients(ctx.task, message.params, draws=ctx.rng.at("dropout"))
            gradient = ctx.private.noisy_mean(of_records)
        return Update(gradient, ctx.size), None

    def batch(self, ctx: ClientContext) -> Records:
        """The records of line 4. With privacy on the sampling rate says how many."""
        if self.batch_size is None:
            return ctx.records
        order = torch.randperm(len(ctx.records), generator=ctx.rng.at("batch").torch())
        index = ctx.records.index[order[: self.batch_size]]
        return replace(ctx.records, index=index)

    def server(
        self, ctx: ServerContext, state: Weights, replies: Sequence[Reply[Update]]
    ) -> Weights:
        shares = client_weights(replies, self.weighting)
        gradient = self.aggregated([reply.message.update for reply in replies], shares)
        eta = decayed(self.learning_rate, self.decay, ctx.round, ctx.task.rounds)
        return Weights(add(state.params, gradient, -eta))  # line 5
