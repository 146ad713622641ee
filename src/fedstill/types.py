"""The vocabulary every part shares: tasks, contexts, replies, and ``Method``, the base class.

A method is a small frozen dataclass: its fields are its hyper-parameters and its functions are
pure. Engines call them in this order and call nothing else:

    state  = method.init(server)                      # once
    c[k]   = method.init_client(task)                 # once per client k
    repeat per round:
        down          = method.broadcast(server, state)
        up[k], c[k]   = method.client(client_k, down, c[k])     # for every sampled client
        state         = method.server(server, state, replies)   # replies sorted by client
    result = method.params(state)

Everything else that ``Method`` declares has a default; a method overrides what it needs
(docs/architecture.md, "What a method may add"). A runnable toy is in ``docs/contributing.md``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Protocol,
    TypeAlias,
    TypeVar,
)

import torch
from torch import Tensor

from fedstill.records import Records, SyntheticSet
from fedstill.rng import Rng
from fedstill.scaling import Kind, Scaling

if TYPE_CHECKING:
    from fedstill.models.model import Model
    from fedstill.private import Leak, Private, PrivateForm
    from fedstill.wire.schema import Schema

Params = dict[str, Tensor]

_CHUNK_PIXELS = 64 * 64 * 64  # of all images that are computed at a time
# An accelerator has no small cache to stay in, and many units to keep busy.
_ACCELERATOR_CHUNK, _ACCELERATOR_PIXELS = 512, 8 * _CHUNK_PIXELS

_AS_IT_IS = nullcontext()

S = TypeVar("S")  # server state
D = TypeVar("D")  # message down
C = TypeVar("C")  # client state
U = TypeVar("U")  # message up
M_co = TypeVar("M_co", covariant=True)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss per record; labels are class numbers or distributions over the classes.

    Where a record has many positions (logits [N, L, classes]: a text), its loss is the mean over
    them. A position whose label is -100 is ignored: its loss is zero.
    """
    if logits.dim() == 2:
        return torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    flat = labels.flatten(0, logits.dim() - 2)
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, -2), flat, reduction="none")
    return losses.view(len(logits), -1).mean(1)


@dataclass(frozen=True)
class Limits:
    """What every upload is declared to stay within, so that no message can rule or break a run.

    ``records``: the most records that a client may claim. ``norm``: of an update, a gradient, or
    anything else of the weights' shape. ``pixels``: how far a pixel may lie outside the range of
    real ones, in widths of that range.
    """

    records: int = 100_000
    norm: float = 10_000.0
    pixels: float = 100.0


@dataclass(frozen=True)
class Task:
    """What is learnt: public values that the server and all clients share."""

    model: "Model"
    shape: tuple[int, ...]
    classes: int
    clients: int
    rounds: int
    scaling: Scaling
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    limits: Limits = field(default_factory=Limits)
    precision: torch.dtype = torch.float32
    kind: Kind = "other"  # what the records show: public, from the catalogue or the shape
    sent_bits: int | None = None  # per pixel of a set on its way up; None: no fixed levels

    @cached_property
    def chunk(self) -> int:
        """How many inputs are computed at a time: as many as suit the model on a processor, many on
        an accelerator, and fewer where images are large, so that their activations fit into
        memory."""
        return self._at_a_time(self.model.chunk)

    @property
    def record_chunk(self) -> int:
        """The same for gradients of single records."""
        return self._at_a_time(self.model.record_chunk)

    def _at_a_time(self, on_processor: int) -> int:
        pixels = math.prod(self.shape[1:]) if len(self.shape) == 3 else 1
        if self.device.type == "cpu":
            most, of_pixels = on_processor, _CHUNK_PIXELS
        else:
            most, of_pixels = max(on_processor, _ACCELERATOR_CHUNK), _ACCELERATOR_PIXELS
        return max(1, min(most, of_pixels // max(1, pixels)))

    def casting(self) -> AbstractContextManager[Any]:
        """Inside, networks compute in ``precision`` where that is sound; weights and gradients stay
        in single precision (PyTorch's automatic mixed precision)."""
        if self.precision == torch.float32:
            return _AS_IT_IS
        return torch.autocast(self.device.type, dtype=self.precision)


def silent(step: int, steps: int) -> None:
    """Reports progress to nobody."""


@dataclass(frozen=True)
class ServerContext:
    """What the server knows in a round. ``round`` counts from 1; ``rng`` is this round's stream.

    ``start``: the weights that another method's first round has left, if the run began with one.
    """

    task: Task
    round: int
    rng: Rng
    progress: Callable[[int, int], None] = silent
    start: Params | None = None

    def first_weights(self) -> Params:
        """The weights that a method starts from."""
        if self.start is not None:
            return self.start
        return self.task.model.init(self.rng.at("init").torch())


@dataclass(frozen=True)
class RepliesNeeded:
    """The fewest replies that a server accepts, the reason, and a remedy."""

    number: int = 1
    because: str = ""  # the settings that need them; empty: the method itself
    remedy: str = ""  # other than more clients


@dataclass(frozen=True)
class ClientContext:
    """The client context of a round: its records, or the private door to them, never both."""

    task: Task
    round: int
    client: int
    rng: Rng
    data: Records | None = None
    private: "Private | None" = None
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
        """The client's number of records: with privacy on, the one declared public."""
        return len(self.records) if self.private is None else self.private.size


@dataclass(frozen=True)
class Reply(Generic[M_co]):
    """What one client sent. ``trust``, 0 to 1, is set by a defence: a server that trains on
    clients' sets multiplies it into the client's weight."""

    client: int
    message: M_co
    trust: float = 1.0


@dataclass(frozen=True)
class Evaluation:
    """Accuracy and loss on the test split; ``None`` if they were not measured.

    Where ``accuracy`` is a mean over several networks, ``details`` say how many (``networks``) and
    how much they differ (``accuracy_std``).
    """

    accuracy: float | None
    loss: float | None
    details: dict[str, float] = field(default_factory=dict)


class Method(ABC, Generic[S, D, C, U]):
    """A federated method, of server state S, message down D, client state C and message up U.

    See the module's docstring for the order of calls. The abstract functions are followed by what a
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
        """The schema that the message down is checked against."""

    @abstractmethod
    def upload(self, task: Task) -> "Schema[U]":
        """The schema that the message up is checked against."""

    @abstractmethod
    def broadcast(self, ctx: ServerContext, state: S) -> D:
        """The message to every sampled client this round."""

    @abstractmethod
    def client(self, ctx: ClientContext, message: D, state: C) -> tuple[U, C]:
        """One client's work in one round: returns its reply and its next state."""

    @abstractmethod
    def server(self, ctx: ServerContext, state: S, replies: Sequence[Reply[U]]) -> S:
        """The server's next state. ``replies`` are sorted by client and not empty."""

    @abstractmethod
    def params(self, state: S) -> Params:
        """The current weights of the model."""

    # Centralised: one client has all records, and nothing is sent.
    pooled: ClassVar[bool] = False
    # What clients send are records themselves: pages and tables say so.
    sends_records: ClassVar[bool] = False
    # Clients send sets of images: 8 bits per pixel, compressed, unless ``wire.up`` says otherwise.
    sends_sets: ClassVar[bool] = False
    # A ``[defence]`` can judge them: ``synthetic`` returns what each client sent, and the server
    # multiplies ``Reply.trust`` into the clients' weights.
    heeds_trust: ClassVar[bool] = False
    # The new weights are an average of the clients' trained weights: then the running statistics of
    # batch norms may be among them.
    averages_weights: ClassVar[bool] = False
    # Defaults of a private run, for settings that the user did not set.
    PRIVATE_DEFAULTS: ClassVar[Mapping[str, Any]] = {}
    # Of these: the first decides what the others mean, as an optimiser does for its learning rate.
    # A private default of the others is used only with the private default of the first.
    PRIVATE_TOGETHER: ClassVar[tuple[tuple[str, ...], ...]] = ()
    # Settings of the experiment that the request left open, e.g. {"rounds": 1}.
    DEFAULTS: ClassVar[Mapping[str, Any]] = {}
    # The sampling rate of a private run that sets none. 1: every access reads all records, which is
    # best where one release is used for many steps.
    private_rate: ClassVar[float] = 0.1
    # Nothing is drawn without privacy: the model does not depend on the seed.
    deterministic: ClassVar[bool] = False
    # What to do instead of a ``[defence]``, if the clients send no sets.
    instead_of_defence: ClassVar[str] = "leave it out"

    def private_form(self, rate: float) -> "PrivateForm | None":
        """The private form at sampling rate ``rate``; ``None``: there is none."""
        return None

    def statistic_size(self, task: Task) -> int | None:
        """How many numbers a vector of norm 1 has, if a private round releases class sums of such
        vectors once: from it follows, before the run, how much of the answer is noise."""
        return None

    @property
    def size_leaks(self) -> "tuple[Leak, ...]":
        """Settings that reveal a client's exact number of records: a private run is refused unless
        these numbers are declared public."""
        return ()

    @property
    def replies_needed(self) -> RepliesNeeded:
        """A run whose rounds cannot provide these is refused before it starts."""
        return RepliesNeeded()

    def choices(self, task: Task) -> Mapping[str, str]:
        """What settings that are left to the data stand for here, to be shown to the user."""
        return {}

    @property
    def start_note(self) -> str | None:
        """What a user should know about these settings before the first round, if anything."""
        return None

    def report(self, state: S, replies: Sequence[Reply[U]]) -> dict[str, float]:
        """The method's own numbers for the round's ``details``."""
        return {}

    def synthetic(self, state: S, replies: Sequence[Reply[U]]) -> dict[int, SyntheticSet]:
        """Sets to store, by client (``SERVER`` for the server's); empty: none this round."""
        return {}

    def evaluate(self, ctx: ServerContext, state: S, test: Records) -> Evaluation | None:
        """The round's evaluation; ``None``: the accuracy of ``params(state)``."""
        return None


class ClientSide(Protocol):
    """The client's half of a method: all that a client's round needs."""

    def init_client(self, task: Task) -> Any: ...

    def download(self, task: Task) -> "Schema[Any]": ...

    def upload(self, task: Task) -> "Schema[Any]": ...

    def client(self, ctx: ClientContext, message: Any, state: Any) -> tuple[Any, Any]: ...


AnyMethod: TypeAlias = Method[Any, Any, Any, Any]


class Stateless(Method[S, D, None, U]):
    """A method whose clients keep no state between rounds."""

    def init_client(self, task: Task) -> None:
        return None
