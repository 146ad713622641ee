"""The vocabulary every part shares: tasks, contexts, replies, and the ``Method`` protocol.

A method is a small frozen dataclass: its fields are its hyper-parameters and its functions are
pure. Engines call them in this order, and nothing else:

    state  = method.init(server)                      # once
    c[k]   = method.init_client(task)                 # once for every client k
    repeat a round:
        down          = method.broadcast(server, state)
        up[k], c[k]   = method.client(client_k, down, c[k])     # for every sampled client
        state         = method.server(server, state, replies)   # replies sorted by client
    result = method.params(state)

A runnable toy, federated averaging of a mean, is in ``docs/contributing.md``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from fedstill.data.dataset import Records, Scaling
from fedstill.rng import Rng

if TYPE_CHECKING:
    from fedstill.models.model import Model
    from fedstill.wire import Schema

Params = dict[str, Tensor]

S = TypeVar("S")  # server state
D = TypeVar("D")  # message down
C = TypeVar("C")  # client state
U = TypeVar("U")  # message up
M_co = TypeVar("M_co", covariant=True)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss of each record; labels are class numbers or distributions over the classes."""
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none")


@dataclass(frozen=True)
class Task:
    """What is learnt: public knowledge that the server and every client share."""

    model: "Model"
    shape: tuple[int, ...]
    classes: int
    clients: int
    rounds: int
    scaling: Scaling
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy


def _silent(step: int, steps: int) -> None:
    """No one is watching."""


@dataclass(frozen=True)
class ServerContext:
    """Where the server stands: ``round`` counts from 1; ``rng`` is this round's server stream."""

    task: Task
    round: int
    rng: Rng
    progress: Callable[[int, int], None] = _silent


class Private(Protocol):
    """The only door to records when privacy is on."""

    def noisy_sum(self, per_record: Callable[[Records], Params], *, clip: float) -> Params:
        """Sum of the clipped per-record vectors of a random batch, plus noise."""
        ...


@dataclass(frozen=True)
class ClientContext:
    """Where a client stands. It has its records, or the private door to them: never both."""

    task: Task
    round: int
    client: int
    rng: Rng
    data: Records | None = None
    private: Private | None = None
    progress: Callable[[int, int], None] = _silent

    def __post_init__(self) -> None:
        if (self.data is None) == (self.private is None):
            raise ValueError("a client has either its records or the private door to them")

    @property
    def records(self) -> Records:
        """The client's records, for code that has no private form."""
        if self.data is None:
            raise PermissionError("privacy is on: records are reached through `private` alone")
        return self.data


@dataclass(frozen=True)
class Reply(Generic[M_co]):
    """What one client sent."""

    client: int
    message: M_co


@dataclass(frozen=True)
class Evaluation:
    """What a round is worth on the test split; ``None`` where it was not measured."""

    accuracy: float | None
    loss: float | None
    details: dict[str, float] = field(default_factory=dict)


class Method(Protocol[S, D, C, U]):
    """A federated method. See the module's docstring for the order of calls."""

    def init(self, ctx: ServerContext) -> S:
        """The server's state before the first round."""
        ...

    def init_client(self, task: Task) -> C:
        """A client's state before its first round (``None`` for a method that keeps none)."""
        ...

    def download(self, task: Task) -> "Schema[D]":
        """What the message down looks like, so that it can be checked."""
        ...

    def upload(self, task: Task) -> "Schema[U]":
        """What the message up looks like, so that it can be checked."""
        ...

    def broadcast(self, ctx: ServerContext, state: S) -> D:
        """The message that every sampled client gets this round."""
        ...

    def client(self, ctx: ClientContext, message: D, state: C) -> tuple[U, C]:
        """One client's work in one round: its reply and its next state."""
        ...

    def server(self, ctx: ServerContext, state: S, replies: Sequence[Reply[U]]) -> S:
        """The server's next state. ``replies`` are sorted by client and not empty."""
        ...

    def params(self, state: S) -> Params:
        """The model as it stands."""
        ...
