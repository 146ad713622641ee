"""SCAFFOLD: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning", ICML 2020, with option II for the control variates.

    1   server: x <- init, c <- 0;  every client: c_i <- 0
    2   for each round:
    3       send x and c to the sampled clients S
    4       client i: y <- x;  K times:  y <- y - eta_l (g(y) - c_i + c)
    5       client i: c_i+ <- c_i - c + (x - y) / (K eta_l)            (option II)
    6       client i: send dy = y - x and dc = c_i+ - c_i;  c_i <- c_i+
    7       server: x <- x + eta_g mean_S dy
    8       server: c <- c + (|S| / N) mean_S dc

Two vectors per message in each direction. Plain SGD only: option II computes the mean gradient from
the path, which momentum would distort.

Line 8 assumes that all clients take equally many steps K. A client with few records takes few: its
c_i stays a gradient at the start of its path, enters c with the full weight 1 / N, and the clients
with many records then add it in each of their many steps. Two settings prevent that: equal
``local_steps``, or ``control_weighting = "records"``, which weights the clients in line 8 by their
records. Where neither is set and the numbers of steps differ much, the server warns.
``weighting = "records"`` does the same for line 7, as NIID-Bench (Li et al., ICDE 2022) has it.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from msgspec import Meta

from fedstill.methods.shared.local_training import LocalSteps
from fedstill.methods.shared.messages import Update, record_range
from fedstill.methods.shared.weighting import Weighting, client_weights
from fedstill.steps.arithmetic import add, scaled, subtract, weighted_sum, zeros_like
from fedstill.types import ClientContext, Method, Params, Reply, ServerContext, Task
from fedstill.wire import NormLimit, Schema, params_specs

_UNEQUAL = 8  # the ratio of local steps from which on the server warns


@dataclass(frozen=True)
class Variates:
    """Server state and message down: weights x and control variate c."""

    params: Params
    control: Params


@dataclass(frozen=True)
class ControlledUpdate(Update):
    """Up: dy (as ``update``) and dc."""

    control: Params


@dataclass(frozen=True)
class Control:
    """Client state: c_i, kept from round to round."""

    control: Params


@dataclass(frozen=True)
class Scaffold(LocalSteps, Method[Variates, Variates, Control, ControlledUpdate]):
    """Local SGD whose drift is corrected by control variates."""

    server_learning_rate: Annotated[float, Meta(gt=0)] = 1.0
    weighting: Weighting = "uniform"  # of the clients in line 7
    control_weighting: Weighting = "uniform"  # and in line 8

    def init(self, ctx: ServerContext) -> Variates:
        params = ctx.first_weights()
        return Variates(params, zeros_like(params))  # line 1

    def init_client(self, task: Task) -> Control:
        return Control({k: torch.zeros(s) for k, s in task.model.shapes.items()})

    def download(self, task: Task) -> Schema[Variates]:
        return Schema(Variates, params_specs(task, "params") | params_specs(task, "control"))

    def upload(self, task: Task) -> Schema[ControlledUpdate]:
        tensors = params_specs(task, "update") | params_specs(task, "control")
        norms = {field: NormLimit(task.limits.norm) for field in ("update", "control")}
        return Schema(ControlledUpdate, tensors, {"records": record_range(task)}, norms)

    def broadcast(self, ctx: ServerContext, state: Variates) -> Variates:
        return state  # line 3

    def client(
        self, ctx: ClientContext, message: Variates, state: Control
    ) -> tuple[ControlledUpdate, Control]:
        records = len(ctx.records)
        drift = subtract(message.control, state.control)
        trained = self.descend(ctx, message.params, correction=lambda _: drift)  # line 4
        update = subtract(trained, message.params)
        length = self.number_of_steps(records) * self.rate_in(ctx)
        change = subtract(scaled(update, -1 / length), message.control)  # line 5
        return ControlledUpdate(update, records, change), Control(add(state.control, change))  # 6

    def server(
        self, ctx: ServerContext, state: Variates, replies: Sequence[Reply[ControlledUpdate]]
    ) -> Variates:
        self.warn_of_unequal_steps(replies)
        shares = client_weights(replies, self.weighting)
        step = weighted_sum([reply.message.update for reply in replies], shares)
        sampled = len(replies) / ctx.task.clients  # |S| / N
        shares = [sampled * share for share in client_weights(replies, self.control_weighting)]
        change = weighted_sum([reply.message.control for reply in replies], shares)
        return Variates(
            add(state.params, step, self.server_learning_rate),  # line 7
            add(state.control, change),  # line 8
        )

    def warn_of_unequal_steps(self, replies: Sequence[Reply[ControlledUpdate]]) -> None:
        """Warn where line 8 is about to spread the variate of a client that takes few steps."""
        if self.control_weighting == "records":
            return
        steps = [self.number_of_steps(reply.message.records) for reply in replies]
        if max(steps) >= _UNEQUAL * min(steps):
            warnings.warn(
                f"scaffold: clients take {min(steps)} to {max(steps)} local steps, and control "
                "variates of few steps can make the model collapse; set "
                "method.control_weighting=records, or equal steps with method.local_steps",
                stacklevel=2,
            )

    def params(self, state: Variates) -> Params:
        return state.params
