"""Methods whose server state and message down are just the weights."""

from fedstill.methods.shared.messages import Weights, weights_schema
from fedstill.types import Params, ServerContext, Stateless, Task, U
from fedstill.wire import Schema


class WeightsDown(Stateless[Weights, Weights, U]):
    """The state is the weights; every sampled client gets them."""

    def init(self, ctx: ServerContext) -> Weights:
        return Weights(ctx.first_weights())

    def download(self, task: Task) -> Schema[Weights]:
        return weights_schema(task)

    def broadcast(self, ctx: ServerContext, state: Weights) -> Weights:
        return state

    def params(self, state: Weights) -> Params:
        return state.params
