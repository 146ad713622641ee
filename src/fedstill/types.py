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

A method may have more than that; what it lacks is not called (docs/architecture.md, "What a method
may add"): ``report``, ``synthetic``, ``evaluate``, ``least_replies``, ``pooled``, ``sends_sets``.

A method that also works through the private door has a function ``private_form(rate)`` that
says how often it opens it (``PrivateForm``), and may have a class variable ``PRIVATE_DEFAULTS``:
settings of a private run, where the user left them open. Without ``private_form`` a run with
privacy on is refused.

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
    """Loss of each record; labels are class numbers or distributions over the classes.

    Where a record has many positions (logits [N, L, classes]: a text), its loss is the mean over
    them. A position whose label is -100 asks for nothing and costs nothing.
    """
    if logits.dim() == 2:
        return torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    flat = labels.flatten(0, logits.dim() - 2)
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, -2), flat, reduction="none")
    return losses.view(len(logits), -1).mean(1)


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


def silent(step: int, steps: int) -> None:
    """Progress that no one is watching."""


@dataclass(frozen=True)
class ServerContext:
    """Where the server stands: ``round`` counts from 1; ``rng`` is this round's server stream."""

    task: Task
    round: int
    rng: Rng
    progress: Callable[[int, int], None] = silent


class RecordVectors(Protocol):
    """A vector for each of some records, in whatever form lets these two be computed."""

    def squared_norms(self) -> Tensor:
        """[records]: over all parts of a vector together."""
        ...

    def weighted(self, shares: Tensor) -> Params:
        """Sums of the vectors by shares [..., records], which may be several sums at once."""
        ...


# Some records to their vectors: tensors [records, ...], or something cleverer.
PerRecord = Callable[[Records], Params | RecordVectors]


@dataclass(frozen=True)
class ClassSums:
    """A release by class: noisy sums [classes, ...] and how many records stand behind each.

    The counts are noisy as well, or public numbers: they may be far off, and below zero.
    """

    sums: Params
    counts: Tensor


class Private(Protocol):
    """The only door to records when privacy is on (``privacy/mechanism.py`` proves what it does).

    Each call of a ``noisy_`` function is one access: a fresh Poisson sample of the client's
    records, a vector of each of them, clipped, added up and blurred by noise. ``per_record`` is
    called with a few records at a time and must give each of them a vector that depends on that
    record and public values alone, e.g. ``steps.per_record.weight_gradients(task, params)``.
    What comes out may be used freely, and as often as one likes.
    """

    @property
    def rate(self) -> float:
        """q: the probability of each record to be in a sample."""
        ...

    @property
    def clip(self) -> float:
        """C: the norm that each record's vector is cut to."""
        ...

    @property
    def class_clip(self) -> float:
        """What of C is left for the vector itself in a release by class."""
        ...

    @property
    def size(self) -> int:
        """How many records the client is publicly known to have: never the true number."""
        ...

    @property
    def classes(self) -> Tensor:
        """Labels of the classes that the client is publicly known to hold, ascending."""
        ...

    @property
    def expected_batch(self) -> float:
        """How many records a sample would have on average if ``size`` were true."""
        ...

    def noisy_sum(self, per_record: PerRecord, *, clip: float | None = None) -> Params:
        """Sum of the clipped per-record vectors of a random batch, plus noise."""
        ...

    def noisy_mean(self, per_record: PerRecord, *, clip: float | None = None) -> Params:
        """``noisy_sum`` divided by ``expected_batch``, which is public."""
        ...

    def noisy_class_sums(self, per_record: PerRecord) -> ClassSums:
        """``noisy_sum`` for every class of ``classes`` by itself, at the price of one access."""
        ...


@dataclass(frozen=True)
class Leak:
    """A setting that would give records away in a private run."""

    setting: str  # its name in the method
    why: str
    remedy: str


@dataclass(frozen=True)
class PrivateForm:
    """What a method that has a private form says about it.

    ``accesses``: how many times a client opens the door in one round, at most. ``leaks``: what is
    wrong with the method's settings as they are; the run is then refused.
    """

    accesses: int
    leaks: tuple[Leak, ...] = ()


@dataclass(frozen=True)
class ClientContext:
    """Where a client stands. It has its records, or the private door to them: never both."""

    task: Task
    round: int
    client: int
    rng: Rng
    data: Records | None = None
    private: Private | None = None
    progress: Callable[[int, int], None] = silent

    def __post_init__(self) -> None:
        if (self.data is None) == (self.private is None):
            raise ValueError("a client has either its records or the private door to them")

    @property
    def records(self) -> Records:
        """The client's records, for code that has no private form."""
        if self.data is None:
            raise PermissionError("privacy is on: records are reached through `private` alone")
        return self.data

    @property
    def size(self) -> int:
        """How many records stand behind the reply: with privacy on, the number declared public."""
        return len(self.records) if self.private is None else self.private.size


@dataclass(frozen=True)
class Reply(Generic[M_co]):
    """What one client sent. ``trust``, 0 to 1, is what a defence thinks of it: a server that
    trains on clients' sets multiplies it into the client's weight."""

    client: int
    message: M_co
    trust: float = 1.0


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
