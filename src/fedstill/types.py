"""The vocabulary every part shares: tasks, contexts, replies, and ``Method``, the base class.

A method is a small frozen dataclass: its fields are its hyper-parameters and its functions are
pure. Engines call them in this order, and nothing else:

    state  = method.init(server)                      # once
    c[k]   = method.init_client(task)                 # once for every client k
    repeat per round:
        down          = method.broadcast(server, state)
        up[k], c[k]   = method.client(client_k, down, c[k])     # for every sampled client
        state         = method.server(server, state, replies)   # replies sorted by client
    result = method.params(state)

Everything else that ``Method`` declares has a default; a method overrides what it needs
(docs/architecture.md, "What a method may add"). A runnable toy is in ``docs/contributing.md``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Protocol,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)

import torch
from torch import Tensor

from fedstill.records import Records, Scaling, SyntheticSet
from fedstill.rng import Rng

if TYPE_CHECKING:
    from fedstill.models.model import Model
    from fedstill.wire.schema import Schema

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
    """What the server knows in a round: it counts from 1; ``rng`` is its stream of this round."""

    task: Task
    round: int
    rng: Rng
    progress: Callable[[int, int], None] = silent


class RecordVectors(Protocol):
    """A vector for each of some records, in whatever form lets these be computed."""

    def squared_norms(self) -> Tensor:
        """[records]: over all parts of a vector together."""
        ...

    def weighted(self, shares: Tensor) -> Params:
        """Sums of the vectors by shares [..., records], which may be several sums at once."""
        ...

    def dense(self) -> Params:
        """The vectors themselves, as tensors [records, ...]."""
        ...


class PerRecord(Protocol):
    """Some records to their vectors: tensors [records, ...], or a form that needs less memory."""

    def __call__(self, records: Records, /) -> Params | RecordVectors: ...


@runtime_checkable
class SizedPerRecord(PerRecord, Protocol):
    """The same, where one record's vector is large: the door then asks for fewer at a time."""

    @property
    def floats(self) -> int:
        """Numbers in memory per record."""
        ...


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
    value: object
    why: str
    remedy: str


@dataclass(frozen=True)
class PrivateForm:
    """What a method that has a private form says about it.

    ``accesses``: how many times a client opens the door in one round, at most. ``leaks``: what is
    wrong with the method's settings as they are; the run is then refused. ``size_leaks``: what is
    wrong only as long as the clients' numbers of records are not declared public.
    """

    accesses: int
    leaks: tuple[Leak, ...] = ()
    size_leaks: tuple[Leak, ...] = ()


@dataclass(frozen=True)
class RepliesNeeded:
    """The fewest replies that a server can work with; who needs them, and what else would help."""

    number: int = 1
    because: str = ""  # the settings that need them; empty: the method itself
    remedy: str = ""  # beside more clients


@dataclass(frozen=True)
class ClientContext:
    """What a client knows in a round: its records, or the private door to them, never both."""

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
    """What a round is worth on the test split; ``None`` where it was not measured.

    Where ``accuracy`` is a mean over several networks, ``details`` say how many (``networks``) and
    how much they differ (``accuracy_std``).
    """

    accuracy: float | None
    loss: float | None
    details: dict[str, float] = field(default_factory=dict)


class Method(ABC, Generic[S, D, C, U]):
    """A federated method, of server state S, message down D, client state C and message up U.

    See the module's docstring for the order of calls. Below the abstract functions stands what a
    method may add; the defaults add nothing.
    """

    @abstractmethod
    def init(self, ctx: ServerContext) -> S:
        """The server's state before the first round."""

    @abstractmethod
    def init_client(self, task: Task) -> C:
        """A client's state before its first round (``Stateless`` for a method that keeps none)."""

    @abstractmethod
    def download(self, task: Task) -> "Schema[D]":
        """What the message down looks like, so that it can be checked."""

    @abstractmethod
    def upload(self, task: Task) -> "Schema[U]":
        """What the message up looks like, so that it can be checked."""

    @abstractmethod
    def broadcast(self, ctx: ServerContext, state: S) -> D:
        """The message that every sampled client gets this round."""

    @abstractmethod
    def client(self, ctx: ClientContext, message: D, state: C) -> tuple[U, C]:
        """One client's work in one round: its reply and its next state."""

    @abstractmethod
    def server(self, ctx: ServerContext, state: S, replies: Sequence[Reply[U]]) -> S:
        """The server's next state. ``replies`` are sorted by client and not empty."""

    @abstractmethod
    def params(self, state: S) -> Params:
        """The model as it stands."""

    # Centralised: one client has all records, and nothing travels.
    pooled: ClassVar[bool] = False
    # ``synthetic`` gives what each client sent, so that a ``[defence]`` can judge it; the server
    # multiplies ``Reply.trust`` into the clients' weights.
    sends_sets: ClassVar[bool] = False
    # Settings of a private run, where the user left them open.
    PRIVATE_DEFAULTS: ClassVar[Mapping[str, Any]] = {}
    # What to do instead of a ``[defence]``, where the clients send no sets.
    instead_of_defence: ClassVar[str] = "leave it out"

    def private_form(self, rate: float) -> PrivateForm | None:
        """How a client uses the private door at sampling rate ``rate``; ``None``: it cannot."""
        return None

    @property
    def replies_needed(self) -> RepliesNeeded:
        """A run whose rounds cannot have these is refused before it starts."""
        return RepliesNeeded()

    def report(self, state: S, replies: Sequence[Reply[U]]) -> dict[str, float]:
        """Numbers of its own for the round's ``details``."""
        return {}

    def synthetic(self, state: S, replies: Sequence[Reply[U]]) -> dict[int, SyntheticSet]:
        """Sets to keep, by client (``SERVER`` for the server's own); empty: none this round."""
        return {}

    def evaluate(self, ctx: ServerContext, state: S, test: Records) -> Evaluation | None:
        """What the round is worth; ``None``: the accuracy of ``params(state)``."""
        return None


class ClientSide(Protocol):
    """The client's half of a method: all that runs a client's turn."""

    def init_client(self, task: Task) -> Any: ...

    def download(self, task: Task) -> "Schema[Any]": ...

    def upload(self, task: Task) -> "Schema[Any]": ...

    def client(self, ctx: ClientContext, message: Any, state: Any) -> tuple[Any, Any]: ...


AnyMethod: TypeAlias = Method[Any, Any, Any, Any]


class Stateless(Method[S, D, None, U]):
    """A method whose clients remember nothing from round to round."""

    def init_client(self, task: Task) -> None:
        return None
