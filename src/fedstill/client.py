"""One client's turn: bytes in, bytes out. Every engine runs its clients through this."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from fedstill import wire
from fedstill.config.experiment import WireSettings
from fedstill.data import Dataset, Partition
from fedstill.errors import BudgetSpent, FedstillError, WireError
from fedstill.privacy.ledger import Reservation
from fedstill.privacy.plan import PrivatePlan
from fedstill.records import Records
from fedstill.rng import Rng
from fedstill.types import ClientContext, ClientSide, Task, silent
from fedstill.wire import Schema, tree


@dataclass(frozen=True)
class Work:
    """What one client is asked to do: the message down and its state from its last round."""

    round: int
    client: int
    message: bytes
    state: bytes | None


@dataclass(frozen=True)
class Answer:
    """A client's result: the message up and its next state, or the reason why there is none.

    ``spent``: the reason is the privacy budget.
    """

    client: int
    message: bytes = b""
    state: bytes | None = None
    error: str | None = None
    traceback: str | None = None
    spent: bool = False
    asked: bool = True  # False: the message down never reached it


@dataclass(frozen=True)
class ClientRecords:
    """The records of all clients, and what a private run lets out of them.

    Only a private run has a ``plan``, and ``ledgers``, the folder of its ledgers. ``reserved``:
    this turn's accesses, where they were counted before the records were opened.
    """

    dataset: Dataset
    partition: Partition
    plan: PrivatePlan | None = None
    ledgers: Path | None = None
    reserved: Reservation | None = None

    def of(self, client: int, task: Task) -> Records:
        """The client's records: indices into the split that all share."""
        index = self.partition.index(client)
        return Records(self.dataset.train, index, self.dataset.scaling, task.device)

    def context(
        self,
        task: Task,
        round: int,
        client: int,
        rng: Rng,
        progress: Callable[[int, int], None] = silent,
    ) -> ClientContext:
        """The client context: with its records, or with the private door to them."""
        records = self.of(client, task)
        if self.plan is None:
            return ClientContext(task, round, client, rng, data=records, progress=progress)
        if self.ledgers is None:
            raise ValueError("a private run needs a folder for its ledgers")
        counter = self.reserved or self.plan.ledger(self.ledgers, client)
        door = self.plan.door(records, task, client, round, rng, counter)
        return ClientContext(task, round, client, rng, private=door, progress=progress)


@dataclass(frozen=True)
class _Broadcast:
    """A message down as bytes and as read, and how often its tensors had been written to."""

    data: bytes
    message: Any
    tensors: tuple[Tensor, ...]
    versions: tuple[int, ...]

    @classmethod
    def of(cls, data: bytes, message: Any) -> "_Broadcast":
        tensors = tuple(tree.flatten(message)[0].values())
        return cls(data, message, tensors, tuple(tensor._version for tensor in tensors))

    @property
    def untouched(self) -> bool:
        """Whether no client wrote into a tensor: a method should not, and might."""
        return self.versions == tuple(tensor._version for tensor in self.tensors)


def _state(initial: Any, stored: bytes | None, task: Task) -> Any:
    """A client's state. The first goes through bytes too, so that all are alike."""
    if initial is None and stored is None:
        return None
    return tree.load(tree.dump(initial) if stored is None else stored, type(initial), task.device)


@dataclass(frozen=True)
class ClientRunner:
    """Runs any client of an experiment in this process."""

    method: ClientSide
    task: Task
    records: ClientRecords
    rng: Rng
    codecs: WireSettings
    start: ClientSide | None = None  # makes the first round, if it is another method than the rest

    def method_in(self, round: int) -> ClientSide:
        """The method of this round."""
        return self.method if round > 1 or self.start is None else self.start

    def answer(self, work: Work, progress: Callable[[int, int], None]) -> Answer:
        """The client's answer. A failure is an answer too: the round may do without it."""
        task, method = self.task, self.method_in(work.round)
        try:
            message = self._received(work, method)
            state = _state(method.init_client(task), work.state, task)
            context = self.context(work.round, work.client, progress)
            reply, after = method.client(context, message, state)
            data = self._encoded(reply, method)
            return Answer(work.client, data, None if after is None else tree.dump(after))
        except BudgetSpent as error:
            return Answer(work.client, error=str(error), spent=True)
        except FedstillError as error:
            return Answer(work.client, error=self._reported(error, str(error)))
        except Exception as error:
            reason = self._reported(error, f"{type(error).__name__}: {error}")
            return Answer(work.client, error=reason, traceback=traceback.format_exc())

    def _received(self, work: Work, method: ClientSide) -> Any:
        """The message down. Clients of one round get the same bytes: they are read and checked once
        for all clients of this process, unless a client has changed what it was given."""
        last = self._last.get(work.round)
        if last is None or last.data != work.message or not last.untouched:
            schema = method.download(self.task)
            message = wire.decode(work.message, schema, self.codecs.down, self.task.device)
            last = _Broadcast.of(work.message, message)
            self._last.clear()
            self._last[work.round] = last
        return last.message

    def _upload(self, method: ClientSide) -> Schema[Any]:
        """What this method's messages up look like: the same for all clients."""
        if id(method) not in self._uploads:
            self._uploads[id(method)] = method.upload(self.task)
        return self._uploads[id(method)]

    @cached_property
    def _uploads(self) -> dict[int, Schema[Any]]:
        return {}

    @cached_property
    def _last(self) -> "dict[int, _Broadcast]":
        """The last round's message down, by its round."""
        return {}

    def _encoded(self, reply: Any, method: ClientSide) -> bytes:
        try:
            return wire.encode(reply, self._upload(method), self.codecs.up)
        except WireError as error:
            hint = "; did the training diverge? lower the learning rate"
            raise WireError(f"{error}{hint if 'NaN' in str(error) else ''}") from None

    def context(
        self, round: int, client: int, progress: Callable[[int, int], None] = silent
    ) -> ClientContext:
        """The context of this client in this round."""
        rng = self.rng.at("round", round, "client", client)
        return self.records.context(self.task, round, client, rng, progress)

    def _reported(self, error: Exception, reason: str) -> str:
        """The reason that is sent to the server. An error's message may quote records: in a private
        run it stays with the client."""
        private = self.records.plan is not None
        return f"{type(error).__name__} (the message stays with the client)" if private else reason
