"""The engine on Flower's grid: finds out which node is which client, sends work, polls answers.

Nodes come and go. Connected nodes get their work at once; missing ones are waited for until the
timeout in the settings, and are then reported as failed with the reason. No message is opened here.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedstill.config import Experiment
from fedstill.engine.base import Answer, Engine, Progress, Work
from fedstill.engine.flower.records import (
    read_answer,
    read_introduction,
    write_query,
    write_work,
)
from fedstill.engine.flower.roster import Roster
from fedstill.errors import WireError

_POLL = (0.02, 0.2)  # seconds between two polls: the shortest and the longest
_LOOK_FOR_NODES = 1.0  # seconds between two looks for new nodes
_GRACE = 60.0  # seconds a message outlives its round, so that our timeout comes first
_REASONS = {  # Flower's error codes as text
    2: "its app raised an error",
    5: "the node is gone",
    8: "its process died",
}


@dataclass(frozen=True)
class Clock:
    """How time passes: tests have a clock of their own, and never wait."""

    now: Callable[[], float]
    sleep: Callable[[float], None]


SYSTEM_CLOCK = Clock(time.monotonic, time.sleep)


class GridEngine(Engine):
    """Sends work to nodes. ``text`` describes the experiment to them.

    ``bound`` says which node is which client, where nodes have keys; see ``roster.py``.
    """

    keeps_ledgers = True

    def __init__(
        self,
        grid: Grid,
        experiment: Experiment,
        text: str,
        bound: Mapping[int, int] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self._grid = grid
        self._experiment = experiment
        self._text = text
        self._roster = Roster(bound or {})
        self._queries: dict[str, int] = {}  # message -> node that was asked which client it is
        self._queried: set[int] = set()
        self._present: set[int] = set()
        self._looked = float("-inf")
        self._first = True

    def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
        """Send to all nodes that are connected or connect in time; answers as they arrive."""
        settings = self._experiment.engine
        begun = self._clock.now()
        limit = settings.round_timeout
        waiting = {work.client: work for work in works}
        pending: dict[str, int] = {}
        good, pause = 0, _POLL[0]
        while waiting or pending:
            self._query_new_nodes()
            pending |= self._send(waiting, limit and limit - (self._clock.now() - begun) + _GRACE)
            answers = list(self._answers(pending))
            for answer in answers:
                good += answer.error is None
                yield answer
            elapsed = self._clock.now() - begun
            enough = not self._first and not pending and good >= self._needed(works)
            if waiting and (enough or elapsed > settings.join_timeout):
                for client in sorted(waiting):
                    yield Answer(client, error=self._missing(client), asked=False)
                waiting.clear()
            if limit is not None and elapsed > limit:
                for client in sorted({*pending.values(), *waiting}):
                    asked = client not in waiting
                    error = f"no answer within {limit:g} s" if asked else self._missing(client)
                    yield Answer(client, error=error, asked=asked)
                break
            pause = _POLL[0] if answers else min(_POLL[1], pause * 1.5)
            self._clock.sleep(pause)
        self._first = False

    def _needed(self, works: Sequence[Work]) -> int:
        return self._experiment.needed(len(works))

    def _send(self, waiting: dict[int, Work], ttl: float | None) -> dict[str, int]:
        """Send their work to the clients that are connected; message id -> client.

        One message at a time: all of them in one call may exceed the server's size limit.
        """
        sent: dict[str, int] = {}
        for client in list(waiting):
            work, node = waiting[client], self._roster.node_of(client)
            if node is None or node not in self._present:
                continue
            message = Message(
                write_work(work, self._text),
                node,
                MessageType.TRAIN,
                group_id=_group(work.round),
                # The server can then drop messages that nobody waits for any more.
                ttl=None if ttl is None else max(1.0, ttl),
            )
            if number := self._push(message):
                sent[number] = client
                del waiting[client]
        return sent

    def _push(self, message: Message) -> str | None:
        """The message's id, or None if the node has just disconnected and Flower refuses it."""
        numbers = list(self._grid.push_messages([message]))
        if numbers and numbers[0]:
            return str(numbers[0])
        self._present.discard(message.metadata.dst_node_id)
        return None

    def _answers(self, pending: dict[str, int]) -> Iterator[Answer]:
        """The answers that have arrived, found by the message that they reply to."""
        if not pending:
            return
        for reply in self._grid.pull_messages(list(pending)):
            client = pending.pop(reply.metadata.reply_to_message_id, None)
            if client is None:
                continue
            if reply.has_error():
                yield Answer(client, error=_reason(reply))
            else:
                yield read_answer(reply.content, client)

    def _query_new_nodes(self) -> None:
        """Ask every new node which client it is, and register those that have replied."""
        if self._clock.now() - self._looked > _LOOK_FOR_NODES:
            self._looked = self._clock.now()
            self._present = set(self._grid.get_node_ids())
            for node in sorted(self._present - self._queried):
                self._queried.add(node)
                query = Message(
                    write_query(self._text), node, MessageType.QUERY, group_id=_group(0)
                )
                if number := self._push(query):
                    self._queries[number] = node
            # A node that was gone is asked again when it is back: it may be another client now.
            self._queried &= self._present
            self._roster.keep(self._present)
        if not self._queries:
            return
        for reply in self._grid.pull_messages(list(self._queries)):
            self._register(self._queries.pop(reply.metadata.reply_to_message_id), reply)

    def _register(self, node: int, reply: Message) -> None:
        """Take the node as the client that it says it is, or note why it cannot take part."""
        try:
            if reply.has_error():
                raise WireError(_reason(reply))
            introduction = read_introduction(reply.content)
            if introduction.error is not None:
                raise WireError(introduction.error)
            self._roster.introduce(node, introduction.client)
        except WireError as error:
            self._roster.reject(node, str(error))

    def _missing(self, client: int) -> str:
        """Why no connected node is this client, as far as is known."""
        reasons = "; ".join(self._roster.reasons())
        return "its node is not connected" + (f" ({reasons})" if reasons else "")


def _group(round: int) -> str:
    """A message's group, with a secret that only its receiver gets to know.

    Flower stores a reply if it names the message it replies to, and lets a node with a key of its
    own name any other node as the sender. A message's id is a hash of what is in it: with the
    secret nobody else can compute the id, and so nobody can answer in place of another node.
    """
    return f"{round}-{secrets.token_hex(16)}"


def _reason(reply: Message) -> str:
    error = reply.error
    text = _REASONS.get(error.code, f"Flower's error {error.code}")
    detail = " ".join((error.reason or "").split())[:300]
    return f"{text}: {detail}" if detail else text
