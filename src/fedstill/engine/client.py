"""One client's turn: bytes in, bytes out. Every engine runs its clients through this."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedstill import tree, wire
from fedstill.data import Dataset, Partition, Records
from fedstill.errors import FedstillError, WireError
from fedstill.rng import Rng
from fedstill.types import ClientContext, Task


@dataclass(frozen=True)
class Work:
    """What one client is asked to do: the message down and its own state from last time."""

    round: int
    client: int
    message: bytes
    state: bytes | None


@dataclass(frozen=True)
class Answer:
    """What came of it: the message up and the next state, or the reason why there is none."""

    client: int
    message: bytes = b""
    state: bytes | None = None
    error: str | None = None
    traceback: str | None = None
    asked: bool = True  # False: the message down never reached it


@dataclass(frozen=True)
class ClientRunner:
    """Runs any client of an experiment in this process."""

    method: Any
    task: Task
    dataset: Dataset
    partition: Partition
    rng: Rng
    up: str  # codecs
    down: str

    def answer(self, work: Work, progress: Callable[[int, int], None]) -> Answer:
        """The client's answer. A failure is an answer too: the round may do without it."""
        try:
            return self._answer(work, progress)
        except FedstillError as error:
            return Answer(work.client, error=str(error))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return Answer(work.client, error=reason, traceback=traceback.format_exc())

    def _answer(self, work: Work, progress: Callable[[int, int], None]) -> Answer:
        task, method = self.task, self.method
        message = wire.decode(work.message, method.download(task), self.down, task.device)
        state = method.init_client(task)
        state_type = type(state)
        stored = tree.dump(state) if work.state is None else work.state
        context = ClientContext(
            task,
            work.round,
            work.client,
            self.rng.at("round", work.round, "client", work.client),
            data=self.records(work.client),
            progress=progress,
        )
        reply, after = method.client(context, message, tree.load(stored, state_type, task.device))
        try:
            data = wire.encode(reply, method.upload(task), self.up)
        except WireError as error:
            hint = "; did the training diverge? lower the learning rate"
            raise WireError(f"{error}{hint if 'NaN' in str(error) else ''}") from None
        return Answer(work.client, data, None if after is None else tree.dump(after))

    def records(self, client: int) -> Records:
        """The client's records: indices into the split that all share."""
        index = self.partition.index(client)
        return Records(self.dataset.train, index, self.dataset.scaling, self.task.device)
