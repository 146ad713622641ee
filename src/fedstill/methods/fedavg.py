"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017.

    1  server: w <- init
    2  for each round r:
    3      send w to the sampled clients
    4      client k: w_k <- w;  E epochs of mini-batch SGD on its records
    5      client k: send w_k - w and n_k
    6      server: w <- w + sum_k (n_k / n) (w_k - w)

Clients send the difference rather than the weights: it gives the same sum, and a lossy codec
harms it less. ``aggregate`` replaces the sum of line 6 with a robust rule (steps/aggregate.py).

With privacy on (DP-FedAvg) line 4 is SGD on noisy means of clipped per-record gradients, 1 / q
steps per epoch, and n_k is a number declared public, or the same for all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedstill.methods.shared.local_training import LocalTraining
from fedstill.methods.shared.messages import Update, Weights, update_schema
from fedstill.methods.shared.weights_down import WeightsDown
from fedstill.types import ClientContext, Reply, ServerContext, Task
from fedstill.wire import Schema


@dataclass(frozen=True)
class FedAvg(LocalTraining, WeightsDown[Update]):  # lines 1 and 3: WeightsDown
    """Average of the clients' locally trained models."""

    averages_weights: ClassVar[bool] = True

    def upload(self, task: Task) -> Schema[Update]:
        return update_schema(task)

    def client(self, ctx: ClientContext, message: Weights, state: None) -> tuple[Update, None]:
        return Update(self.local_update(ctx, message.params), ctx.size), None  # lines 4 and 5

    def server(
        self, ctx: ServerContext, state: Weights, replies: Sequence[Reply[Update]]
    ) -> Weights:
        return Weights(self.averaged(state.params, replies))  # line 6
