"""FedNova: Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization", NeurIPS 2020.

Clients with more records take more steps, so FedAvg weights them twice. FedNova divides each
client's update by the length a_k of its path before averaging:

    1  client k: tau_k steps of SGD from w;  d_k <- (w_k - w) / a_k
    2  client k: send d_k, a_k, n_k
    3  server: p_k <- n_k / n;  tau_eff <- sum_k p_k a_k
    4  server: w <- w + tau_eff sum_k p_k d_k

For plain SGD a_k = tau_k; with momentum rho it is the sum of the gradients' weights,
(tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho). If all clients take equally many steps, it is
FedAvg. ``aggregate`` replaces line 4's sum with a robust rule, and line 3's with the median.
With privacy on all clients take the same number of steps, and it would be FedAvg: it is refused.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedstill.methods.shared.local_training import LocalTraining
from fedstill.methods.shared.messages import Update, Weights, record_range
from fedstill.methods.shared.weighting import client_weights
from fedstill.methods.shared.weights_down import WeightsDown
from fedstill.steps.arithmetic import add, scaled
from fedstill.types import ClientContext, Reply, ServerContext, Task
from fedstill.wire import NormLimit, Schema, params_specs
from fedstill.wire.schema import Range


@dataclass(frozen=True)
class NormalisedUpdate(Update):
    """Up: the update divided by ``path``, the length of the client's path."""

    path: float


def path_length(steps: int, momentum: float) -> float:
    """a_k: the total weight of the gradients of ``steps`` steps in the update."""
    rho = momentum
    # At least one: rounding must not make a single step shorter.
    return max(1.0, (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho))


@dataclass(frozen=True)
class FedNova(LocalTraining, WeightsDown[NormalisedUpdate]):
    """Average of updates that are normalised by each client's number of steps."""

    optimiser: Literal["sgd"] = "sgd"  # whose path length a_k is

    def private_form(self, rate: float) -> None:
        """None: it would be DP-FedAvg (see above)."""
        return

    def upload(self, task: Task) -> Schema[NormalisedUpdate]:
        longest = path_length(self.number_of_steps(task.limits.records), self.momentum)
        numbers: dict[str, Range] = {
            "records": record_range(task),
            "path": (1, longest, "max_records"),
        }
        norms = {"update": NormLimit(task.limits.norm)}
        return Schema(NormalisedUpdate, params_specs(task, "update"), numbers, norms)

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
        if self.aggregate != "mean":  # clients report their paths: only the median is robust
            effective = statistics.median(paths)
        direction = self.aggregated([reply.message.update for reply in replies], shares)
        return Weights(add(state.params, direction, effective))  # line 4
