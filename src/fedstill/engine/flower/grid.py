"""The engine on Flower's grid: finds out which node is which client, sends work, polls answers.

Nodes come and go. Whoever is there is asked at once; who is missing is waited for as long as the
settings say, and then named among the failed with the reason. Nothing here looks into a message.
"""

import time
import warnings
from collections.abc import Iterator, Sequence

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedstill.config import Experiment
from fedstill.engine.base import Answer, Engine, Progress, Work
from fedstill.engine.flower.records import (
    read_answer,
    read_introduction,
    write_question,
    write_work,
)
from fedstill.errors import WireError

_POLL = (0.02, 0.2)  # seconds between two looks: soon at first, then calmly
_LOOK_FOR_NODES = 1.0
_GRACE = 60.0  # seconds a message outlives its round: our limit is to be the first to strike
_REASONS = {  # Flower's error codes in our words
    2: "its app raised an error",
    5: "the node is gone",
    8: "its process died",
}


class GridEngine(Engine):
    """Carries work to nodes. ``text`` describes the experiment to them."""

    keeps_ledgers = True

    def __init__(self, grid: Grid, experiment: Experiment, text: str) -> None:
        self._grid = grid
        self._experiment = experiment
        self._text = text
        self._nodes: dict[int, int] = {}  # client -> node
        self._questions: dict[str, int] = {}  # message -> node that was asked who it is
        self._met: set[int] = set()
        self._turned_away: dict[int, str] = {}  # node -> reason
        self._present: set[int] = set()
        self._looked = float("-inf")
        self._first = True

    def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
        """Send to all nodes that are there or come in time; answers as they arrive."""
        settings = self._experiment.engine
        begun = time.monotonic()
        limit = settings.round_timeout
        waiting = {work.client: work for work in works}
        pending: dict[str, int] = {}
        good, pause = 0, _POLL[0]
        while waiting or pending:
            self._meet_newcomers()
            pending |= self._send(waiting, limit and limit - (time.monotonic() - begun) + _GRACE)
            answers = list(self._answers(pending))
            for answer in answers:
                good += answer.error is None
                yield answer
            elapsed = time.monotonic() - begun
            enough = not self._first and not pending and good >= self._needed(works)
            if waiting and (enough or elapsed > settings.join_timeout):
                for client in sorted(waiting):
                    yield Answer(client, error=self._absence(client), asked=False)
                waiting.clear()
            if limit is not None and elapsed > limit:
                for client in sorted({*pending.values(), *waiting}):
                    asked = client not in waiting
                    error = f"no answer within {limit:g} s" if asked else self._absence(client)
                    yield Answer(client, error=error, asked=asked)
                break
            pause = _POLL[0] if answers else min(_POLL[1], pause * 1.5)
            time.sleep(pause)
        self._first = False

    def _needed(self, works: Sequence[Work]) -> int:
        return self._experiment.needed(len(works))

    def _send(self, waiting: dict[int, Work], ttl: float | None) -> dict[str, int]:
        """Hand their work to the clients that are here; the message's number -> client.

        One message after another: all of them in one call may be more than the server takes.
        """
        sent: dict[str, int] = {}
        for client in [c for c in waiting if self._nodes.get(c) in self._present]:
            work = waiting[client]
            message = Message(
                write_work(work, self._text),
                self._nodes[client],
                MessageType.TRAIN,
                group_id=str(work.round),
                # What nobody waits for any more shall not lie about on the server.
                ttl=None if ttl is None else max(1.0, ttl),
            )
            if number := self._push(message):
                sent[number] = client
                del waiting[client]
        return sent

    def _push(self, message: Message) -> str | None:
        """The message's number, or None where the node has just gone: Flower does not take it."""
        numbers = list(self._grid.push_messages([message]))
        if numbers and numbers[0]:
            return str(numbers[0])
        self._present.discard(message.metadata.dst_node_id)
        return None

    def _answers(self, pending: dict[str, int]) -> Iterator[Answer]:
        """What has arrived; error replies may come from elsewhere, but they know the question."""
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

    def _meet_newcomers(self) -> None:
        """Ask every node that has not been asked which client it is."""
        if time.monotonic() - self._looked > _LOOK_FOR_NODES:
            self._looked = time.monotonic()
            self._present = set(self._grid.get_node_ids())
            for node in sorted(self._present - self._met):
                self._met.add(node)
                question = Message(write_question(self._text), node, MessageType.QUERY)
                if number := self._push(question):
                    self._questions[number] = node
            # A node that was gone is asked again when it comes back: it may be another one now.
            self._met &= self._present
        if not self._questions:
            return
        for reply in self._grid.pull_messages(list(self._questions)):
            self._welcome(self._questions.pop(reply.metadata.reply_to_message_id), reply)

    def _welcome(self, node: int, reply: Message) -> None:
        self._turned_away.pop(node, None)
        try:
            if reply.has_error():
                raise WireError(_reason(reply))
            introduction = read_introduction(reply.content)
            if introduction.error is not None:
                raise WireError(introduction.error)
            self._appoint(introduction.client, node)
        except WireError as error:
            self._turned_away[node] = str(error)

    def _appoint(self, client: int, node: int) -> None:
        """From now on this node is the client. A node that restarts may come as another one,
        and the old one is thought alive for a minute: so the newest counts."""
        other = self._nodes.get(client)
        if other in self._present and other != node:
            self._turned_away[other] = f"node {node} is client {client} now"
            warnings.warn(
                f"client {client}: node {node} takes the place of node {other}; if both are "
                "running, give each a partition-id of its own",
                stacklevel=2,
            )
        self._nodes[client] = node

    def _absence(self, client: int) -> str:
        """Why a client's node is not here, as far as is known."""
        reasons = "; ".join(
            f"node {node} was turned away: {reason}"
            for node, reason in sorted(self._turned_away.items())
            if node in self._present
        )
        return "its node is not connected" + (f" ({reasons})" if reasons else "")


def _reason(reply: Message) -> str:
    error = reply.error
    words = _REASONS.get(error.code, f"Flower's error {error.code}")
    detail = " ".join((error.reason or "").split())[:300]
    return f"{words}: {detail}" if detail else words
