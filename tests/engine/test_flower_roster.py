"""Which node is which client: bound by keys, or first come, first kept."""

import warnings
from collections.abc import Iterator

import pytest

from fedstill.engine.flower.roster import Roster
from fedstill.errors import WireError


@pytest.fixture
def notes() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield seen


def test_a_bound_client_is_its_own_node_only(notes: list[warnings.WarningMessage]) -> None:
    roster = Roster({0: 70, 1: 80})
    with pytest.raises(WireError, match=r"its key is that of client 1: set its partition-id to 1"):
        roster.introduce(80, 0)  # before the right one is there
    assert roster.node_of(0) is None
    roster.introduce(70, 0)
    for _ in range(3):
        with pytest.raises(WireError, match="its key is that of client 1"):
            roster.introduce(80, 0)
    assert roster.node_of(0) == 70
    assert len(notes) == 1  # not once more whenever it comes back
    assert "node 80 was rejected: it says it is client 0" in str(notes[0].message)
    roster.keep({80})  # its own node is gone: nobody replaces it
    with pytest.raises(WireError):
        roster.introduce(80, 0)
    assert roster.node_of(0) is None
    roster.introduce(80, 1)
    assert roster.node_of(1) == 80


def test_where_clients_are_bound_no_other_node_is_one(
    notes: list[warnings.WarningMessage],
) -> None:
    roster = Roster({0: 70})
    with pytest.raises(WireError, match="its key is that of no client: `fedstill deploy register`"):
        roster.introduce(99, 0)
    with pytest.raises(WireError, match="its key is that of no client"):
        roster.introduce(99, 1)  # a client without a key is nobody
    assert roster.node_of(0) is roster.node_of(1) is None
    assert len(notes) == 2


def test_without_keys_the_first_node_keeps_its_client(
    notes: list[warnings.WarningMessage],
) -> None:
    roster = Roster({})
    roster.introduce(90, 0)
    roster.introduce(70, 0)
    roster.introduce(80, 0)
    assert roster.node_of(0) == 90
    assert len(notes) == 2
    (first, second) = roster.reasons()
    assert first.startswith("node 70 was rejected: client 0 is node 90")
    assert "partition-id" in second
    roster.keep({90, 70, 80})
    assert roster.node_of(0) == 90
    roster.keep({70, 80})  # the holder is gone: the one that has waited longest takes over
    assert roster.node_of(0) == 70
    roster.introduce(90, 0)  # it is back, and too late
    assert roster.node_of(0) == 70
    roster.reject(70, "other data")
    assert roster.node_of(0) == 80
    assert roster.reasons()[0] == "node 70 was rejected: other data"


def test_a_node_that_comes_back_may_be_another_client() -> None:
    roster = Roster({})
    roster.introduce(70, 0)
    roster.keep(set())
    assert roster.node_of(0) is None
    roster.introduce(70, 1)
    assert roster.node_of(0) is None
    assert roster.node_of(1) == 70
    assert roster.reasons() == []
