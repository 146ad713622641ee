"""The engine on a fake grid: which nodes are waited for, which are reported, with what reason.

Real processes are in test_flower_deployment.py and test_flower_faults.py; here timeouts are short.
"""

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedstill[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedstill.client import Answer, Work
from fedstill.config import resolve
from fedstill.engine.flower import grid as grid_module
from fedstill.engine.flower.grid import GridEngine
from fedstill.engine.flower.records import (
    read_answer,
    read_experiment,
    read_introduction,
    read_work,
    write_answer,
    write_introduction,
    write_query,
    write_work,
)
from fedstill.engine.flower.turn import Introduction
from fedstill.errors import WireError

pytestmark = pytest.mark.slow  # with the others that need Flower

KEY = b"k" * 32
LARGE = 5 * 2**20  # bytes: Flower sends it in pieces


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one internal of Flower that is needed outside of a run: the sender's identity."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


Behaviour = Callable[[Message], Message | None]


class FakeTime:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self._now = self._seen = 0.0
        self.clock = grid_module.Clock(lambda: self._now, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self._now += seconds

    def passed(self) -> float:
        """Seconds since the last call."""
        before, self._seen = self._seen, self._now
        return self._now - before


class FakeGrid:
    """Nodes that answer as given, at once."""

    def __init__(self) -> None:
        self.nodes: dict[int, Behaviour] = {}
        self.sent: list[Message] = []
        self._replies: dict[str, Message] = {}
        self._numbers = itertools.count()
        self.time = FakeTime()

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            number = f"message-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = number
            self.sent.append(message)
            behave = self.nodes.get(message.metadata.dst_node_id)
            if behave is not None and (reply := behave(message)) is not None:
                self._replies[number] = reply
            yield number if behave is not None else ""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(n) for n in list(message_ids) if n in self._replies]


def node(client: int, answer: Behaviour | None = None) -> Behaviour:
    """An honest node, except for its answer to work if one is given."""

    def behave(message: Message) -> Message | None:
        if message.metadata.message_type == MessageType.QUERY:
            return Message(write_introduction(Introduction(client)), reply_to=message)
        if answer is not None:
            return answer(message)
        work = read_work(message.content)
        reply = Answer(work.client, b"reply to " + work.message, KEY)
        return Message(write_answer(reply), reply_to=message)

    return behave


def engine_on(grid: FakeGrid, bound: dict[int, int] | None = None, **settings: Any) -> GridEngine:
    experiment = resolve(
        {
            "method": "fedavg",
            "quorum": 0.5,
            "engine": {"name": "flower", "join_timeout": 5.0, **settings},
        }
    )
    return GridEngine(grid, experiment, "the experiment", bound, grid.time.clock)


def works(round: int = 1, clients: int = 3) -> list[Work]:
    return [Work(round, client, b"down", KEY if round > 1 else None) for client in range(clients)]


def exchange(engine: GridEngine, round: int = 1) -> dict[int, Answer]:
    answers = list(engine.exchange(works(round), lambda *_: None))
    assert len(answers) == 3
    return {answer.client: answer for answer in answers}


def test_every_client_is_asked_on_its_own_node() -> None:
    grid = FakeGrid()
    grid.nodes = {70: node(2), 80: node(0), 90: node(1)}
    engine = engine_on(grid)
    answers = exchange(engine)
    assert answers == {k: Answer(k, b"reply to down", KEY) for k in range(3)}
    asked = {
        message.metadata.dst_node_id: read_work(message.content)
        for message in grid.sent
        if message.metadata.message_type == MessageType.TRAIN
    }
    assert asked == {70: works()[2], 80: works()[0], 90: works()[1]}
    exchange(engine, round=2)
    queries = [m for m in grid.sent if m.metadata.message_type == MessageType.QUERY]
    assert len(queries) == 3  # no node is asked twice which client it is


def test_the_first_round_waits_for_all_and_later_ones_for_the_quorum() -> None:
    grid = FakeGrid()
    grid.nodes = {70: node(0), 80: node(1)}
    engine = engine_on(grid)
    answers = exchange(engine)
    assert grid.time.passed() > 5
    assert answers[2] == Answer(2, error="its node is not connected", asked=False)
    assert exchange(engine, round=2)[2].asked is False
    assert grid.time.passed() < 0.4  # two of three are the quorum
    del grid.nodes[70]
    grid.time.clock.sleep(2)  # until nodes are looked for again
    grid.time.passed()
    assert exchange(engine, round=3)[0].error == "its node is not connected"
    assert grid.time.passed() > 5  # one of three is not


def test_a_node_that_joins_during_a_round_takes_part_in_it() -> None:
    grid = FakeGrid()
    grid.nodes = {70: node(0), 80: node(1)}
    answers: list[Answer] = []
    for answer in engine_on(grid).exchange(works(), lambda *_: None):
        answers.append(answer)
        grid.nodes[90] = node(2)
    assert [answer.error for answer in answers] == [None] * 3


def test_a_node_that_hangs_is_dropped_at_the_timeout() -> None:
    grid = FakeGrid()
    grid.nodes = {70: node(0), 80: node(1), 90: node(2, lambda message: None)}
    answers = exchange(engine_on(grid, round_timeout=0.3))
    assert 0.3 < grid.time.passed() < 2
    assert answers[2].error == "no answer within 0.3 s"
    assert answers[2].asked
    assert answers[0].error is None
    # Flower drops a message after its ttl, which must come after our own timeout.
    asked = [m for m in grid.sent if m.metadata.message_type == MessageType.TRAIN]
    assert all(10 < message.metadata.ttl < 100 for message in asked)


def failing(code: int, reason: str) -> Behaviour:
    return lambda message: Message(Error(code=code, reason=reason), reply_to=message)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (2, "its app raised an error: boom"),
        (5, "the node is gone: boom"),
        (8, "its process died: boom"),
        (4, "Flower's error 4: boom"),
    ],
)
def test_flowers_errors_as_text(code: int, reason: str) -> None:
    grid = FakeGrid()
    grid.nodes = {70: node(0), 80: node(1, failing(code, "boom")), 90: node(2)}
    assert exchange(engine_on(grid))[1] == Answer(1, error=reason)


def test_a_node_that_does_not_fit_is_rejected_with_its_reason() -> None:
    grid = FakeGrid()
    misfit = Introduction(-1, "records of shape (1, 9, 9)")

    def refuse(message: Message) -> Message:
        return Message(write_introduction(misfit), reply_to=message)

    grid.nodes = {70: node(0), 80: node(1), 90: refuse, 95: failing(1, "no such module")}
    error = exchange(engine_on(grid))[2].error
    assert error is not None
    assert "node 90 was rejected: records of shape (1, 9, 9)" in error
    assert "node 95 was rejected: Flower's error 1: no such module" in error


def test_a_node_that_restarts_with_another_id_takes_over_when_the_old_one_is_gone() -> None:
    grid = FakeGrid()
    grid.nodes = {70: node(0), 80: node(1), 90: node(2, lambda message: None)}
    engine = engine_on(grid, round_timeout=0.3)
    assert exchange(engine)[2].error == "no answer within 0.3 s"
    grid.nodes[99] = node(2)  # Flower still takes the old one for alive
    grid.time.clock.sleep(2)  # until nodes are looked for again
    with pytest.warns(UserWarning, match="node 99 was rejected: client 2 is node 90"):
        exchange(engine, round=2)
    assert asked(grid, 99) == 0
    del grid.nodes[90]
    grid.time.clock.sleep(2)
    assert exchange(engine, round=3)[2].error is None
    assert asked(grid, 99) == 1


def asked(grid: FakeGrid, number: int) -> int:
    """How often the node got work."""
    return sum(
        m.metadata.message_type == MessageType.TRAIN and m.metadata.dst_node_id == number
        for m in grid.sent
    )


def test_a_node_that_says_it_is_another_client_does_not_replace_it() -> None:
    grid = FakeGrid()
    liar = node(0, lambda message: Message(write_answer(Answer(0, b"lies", KEY)), reply_to=message))
    for bound in ({0: 70, 1: 80, 2: 90}, {}):
        grid.nodes = {70: node(0), 90: node(2)}
        engine = engine_on(grid, bound, join_timeout=5.0)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            exchange(engine)
            grid.nodes[80] = liar  # the newest
            grid.time.clock.sleep(2)
            answers = exchange(engine, round=2)
            grid.time.clock.sleep(2)
            answers = exchange(engine, round=3)
        assert answers[0].message == b"reply to down"
        assert answers[1].error is not None
        assert "node 80 was rejected: " in answers[1].error
        assert asked(grid, 80) == 0
        assert len(seen) == 1


def test_a_bound_client_is_never_another_node_not_even_when_its_own_is_gone() -> None:
    grid = FakeGrid()
    grid.nodes = {80: node(0), 90: node(2), 99: node(1)}
    engine = engine_on(grid, {0: 70, 1: 80, 2: 90})
    with pytest.warns(UserWarning, match="rejected"):
        answers = exchange(engine)
    for client in (0, 1):
        error = answers[client].error
        assert error is not None
        assert "node 80 was rejected: it says it is client 0, but its key is that of" in error
        assert "node 99 was rejected: it says it is client 1, but its key is that of no" in error
    assert answers[2].error is None


def test_no_other_node_can_compute_the_id_of_a_message() -> None:
    """Flower accepts a reply from whoever names the message, and its id is a hash of the message:
    two that are equal in all else have a secret each."""
    grid = FakeGrid()
    grid.nodes = {70: node(0), 80: node(1), 90: node(2)}
    engine = engine_on(grid)
    exchange(engine)
    exchange(engine, round=2)
    groups = [message.metadata.group_id for message in grid.sent]
    assert len(groups) == len(set(groups)) == 9  # the queries too
    assert all(len(bytes.fromhex(group.partition("-")[2])) == 16 for group in groups)


def malformed() -> Iterator[RecordDict]:
    good = write_answer(Answer(1, bytes(LARGE)))
    fields, data = good["fedstill"], good["bytes"]
    yield RecordDict({})
    yield RecordDict({"fedstill": fields})
    yield RecordDict({"fedstill": data, "bytes": data})
    yield RecordDict({"fedstill": fields, "bytes": fields})
    other = Array(dtype="uint8", shape=(1,), stype="numpy.ndarray", data=b"x")
    yield RecordDict({"fedstill": fields, "bytes": ArrayRecord({"message": other})})
    yield RecordDict({"fedstill": fields, "bytes": ArrayRecord({"another": other})})
    small = write_answer(Answer(1, b"bytes"))["fedstill"]
    yield RecordDict({"fedstill": ConfigRecord({**small, "message": "text"})})
    yield RecordDict({"fedstill": ConfigRecord({**small, "state": "text"})})
    yield RecordDict({"fedstill": ConfigRecord({**small, "header": "text"})})
    whole = msgspec.json.decode(small["header"])
    headers = [b"", b"garbage", b"[1, 2]", b"{}", b'{"client": 1, "x": ' + b"[" * 10**5]
    changes: list[dict[str, Any]] = [
        {"client": 2},  # it answers for another client
        {"client": "1"},
        {"error": 3},
        {"stateless": 0},
        {"spent": "yes"},
        {"another": None},
    ]
    headers += [msgspec.json.encode({**whole, **change}) for change in changes]
    for header in headers:
        yield RecordDict({"fedstill": ConfigRecord({**small, "header": header})})
    stateful = {**small, "header": msgspec.json.encode({**whole, "stateless": False})}
    yield RecordDict({"fedstill": ConfigRecord({**stateful, "state": b"x" * 10**6})})


def test_records_of_another_format_are_a_refused_answer() -> None:
    for records in malformed():
        answer = read_answer(records, 1)
        assert answer.error is not None
        assert answer.error.startswith("refused: ")
        assert answer.message == b""
        assert answer.state is None


def test_records_come_back_as_they_went() -> None:
    for message in (b"\x00\xff" * 1000, bytes(LARGE)):
        work = Work(3, 7, message, KEY)
        records = write_work(work, "text")
        assert read_work(records) == work
        assert read_experiment(records) == "text"
    assert read_answer(write_answer(Answer(1, bytes(LARGE))), 1).message == bytes(LARGE)
    assert read_experiment(write_query("text")) == "text"
    assert read_work(write_work(Work(1, 0, b"", None), "")) == Work(1, 0, b"", None)
    failed = Answer(7, error="e", traceback="t")
    assert read_answer(write_answer(failed), 7) == failed
    assert read_introduction(write_introduction(Introduction(4))) == Introduction(4)
    with pytest.raises(WireError, match="are not fedstill's"):
        read_introduction(RecordDict({}))


def test_a_description_that_unpacks_to_far_too_much_is_cut() -> None:
    assert len(read_experiment(write_query("x" * 10**8))) == 2**20
    with pytest.raises(WireError, match="cannot be read"):
        read_experiment(RecordDict({"fedstill": ConfigRecord({"experiment": b"garbage"})}))


def test_a_very_long_error_is_cut() -> None:
    answer = read_answer(write_answer(Answer(1, error="e" * 10**6)), 1)
    assert answer.error == "e" * 1997 + "..."
