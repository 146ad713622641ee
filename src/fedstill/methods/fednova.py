"""FedNova: Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization", NeurIPS 2020.

Clients with more records take more steps, so FedAvg leans towards them twice. FedNova divides
each client's update by the length a_k of its own path before averaging:

    1  client k: tau_k steps of SGD from w;  d_k <- (w_k - w) / a_k
    2  client k: send d_k, a_k, n_k
    3  server: p_k <- n_k / n;  tau_eff <- sum_k p_k a_k
    4  server: w <- w + tau_eff sum_k p_k d_k

For plain SGD a_k = tau_k; with momentum rho it is the sum of the weights that the gradients
get, (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho). With equal steps everywhere it is FedAvg.
``aggregate`` puts a robust rule in the place of line 4's sum, and the median in that of line 3's.
With privacy on all clients take the same number of steps, and it would be FedAvg: it is refused.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fedstill.methods.shared.local_training import LocalTraining
from fedstill.methods.shared.messages import MANY, Update, Weights
from fedstill.methods.shared.weighting import client_weights
from fedstill.methods.shared.weights_down import WeightsDown
from fedstill.steps.arithmetic import add, scaled
from fedstill.types import ClientContext, Reply, ServerContext, Task
from fedstill.wire import Schema, params_specs


@dataclass(frozen=True)
class NormalisedUpdate(Update):
    """Up: the update divided by ``path``, the length of the client's own path."""

    path: float


def path_length(steps: int, momentum: float) -> float:
    """a_k: how much the gradients of ``steps`` steps weigh in the update, in total."""
    rho = momentum
    # At least one: rounding must not make a single step a little shorter.
    return max(1.0, (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho))


@dataclass(frozen=True)
class FedNova(LocalTraining, WeightsDown[NormalisedUpdate]):
    """Average of updates that are normalised by each client's number of steps."""

    def private_form(self, rate: float) -> None:
        """None: see above, DP-FedAvg is the same under its own name."""
        return

    def upload(self, task: Task) -> Schema[NormalisedUpdate]:
        numbers = {"records": (1, MANY), "path": (1, MANY)}
        return Schema(NormalisedUpdate, params_specs(task, "update"), numbers)

    def client(
        self, ctx: ClientContext, message: Weights, state: None
    ) -> tuple[NormalisedUpdate, None]:
        records = len(ctx.records)
        path = path_length(self.number_of_steps(records), self.momentum)
        update = self.local_update(ctx, message.params)  # line 1
        return NormalisedUpdate(scaled(update, 1 / path), records, path), None  # line 2

    def server(
        self, ctx: ServerContext, state: Weights, replies: Sequence[Reply[NormalisedUpdate]]
    ) -> Weights:
        shares = client_weights(replies, self.weighting)  # line 3
        paths = [reply.message.path for reply in replies]
        effective = sum(p * a for p, a in zip(shares, paths, strict=True))
        if self.aggregate != "mean":  # a path is a client's word too: the middle one is safe
            effective = statistics.median(paths)
        direction = self.aggregated([reply.message.update for reply in replies], shares)
        return Weights(add(state.params, direction, effective))  # line 4
