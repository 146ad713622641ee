"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017.

    1  server: w <- init
    2  for each round r:
    3      send w to the sampled clients
    4      client k: w_k <- w;  E epochs of mini-batch SGD on its own records
    5      client k: send w_k - w and n_k
    6      server: w <- w + sum_k (n_k / n) (w_k - w)

The difference travels rather than the weights: it is the same sum, and it loses less in a
coarse codec. ``aggregate`` puts a robust rule in the place of line 6's sum (steps/aggregate.py).

With privacy on (DP-FedAvg) line 4 is SGD on noisy means of clipped per-record gradients, 1 / q
steps an epoch, and n_k is a number declared public, or the same for all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from fedstill.methods.shared.messages import Counted, Update, Weights, update_schema, weights_schema
from fedstill.steps.aggregate import Aggregating
from fedstill.steps.arithmetic import add, subtract
from fedstill.steps.local_sgd import local_sgd, private_steps
from fedstill.types import ClientContext, Params, PrivateForm, Reply, ServerContext, Task
from fedstill.wire import Schema

Weighting = Literal["records", "uniform"]


def client_weights(replies: Sequence[Reply[Counted]], weighting: Weighting) -> list[float]:
    """The share of each client in the average: n_k / n, or the same for all."""
    if weighting == "uniform":
        return [1.0 / len(replies)] * len(replies)
    total = sum(reply.message.records for reply in replies)
    return [reply.message.records / total for reply in replies]


@dataclass(frozen=True)
class FedAvg(Aggregating):
    """Average of the clients' locally trained models."""

    PRIVATE_DEFAULTS: ClassVar[Mapping[str, Any]] = {"weighting": "uniform"}

    local_epochs: Annotated[int, Meta(ge=1)] = 1
    local_steps: Annotated[int, Meta(ge=1)] | None = None  # so many SGD steps instead of epochs
    batch_size: Annotated[int, Meta(ge=1)] = 32
    learning_rate: Annotated[float, Meta(gt=0)] = 0.05
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Meta(ge=0)] = 0.0
    weighting: Weighting = "records"

    def private_form(self, rate: float) -> PrivateForm:
        return PrivateForm(private_steps(self.local_epochs, rate, self.local_steps))

    def init(self, ctx: ServerContext) -> Weights:
        return Weights(ctx.task.model.init(ctx.rng.at("init").torch()))  # line 1

    def init_client(self, task: Task) -> None:
        return None

    def download(self, task: Task) -> Schema[Weights]:
        return weights_schema(task)

    def upload(self, task: Task) -> Schema[Update]:
        return update_schema(task)

    def broadcast(self, ctx: ServerContext, state: Weights) -> Weights:
        return state  # line 3

    def client(self, ctx: ClientContext, message: Weights, state: None) -> tuple[Update, None]:
        trained = self.train(ctx, message.params)  # line 4
        return Update(subtract(trained, message.params), ctx.size), None  # line 5

    def train(self, ctx: ClientContext, start: Params) -> Params:
        """The client's local training."""
        return local_sgd(
            ctx,
            start,
            epochs=self.local_epochs,
            steps=self.local_steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            correction=self.correction(start),
        )

    def correction(self, start: Params) -> Callable[[Params], Params] | None:
        """What is added to each local gradient: nothing here; FedProx says otherwise."""
        return None

    def server(
        self, ctx: ServerContext, state: Weights, replies: Sequence[Reply[Update]]
    ) -> Weights:
        updates = [reply.message.update for reply in replies]
        shares = client_weights(replies, self.weighting)
        return Weights(add(state.params, self.aggregated(updates, shares)))  # line 6

    def params(self, state: Weights) -> Params:
        return state.params
