"""The ledger: on disk before the access, whole after any kill, never forgetful."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fedstill.errors import BudgetSpent, RunError
from fedstill.privacy.ledger import LargestCount, Ledger, Reservation, ledger_of
from tests.waiting import FOREVER


def test_a_line_an_access(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path / "ledger", 3, 0.1, 1.5)
    ledger.open(1, 0.7)
    ledger.open(2, 0.7)
    lines = (tmp_path / "ledger" / "client-00003.jsonl").read_text().splitlines()
    assert json.loads(lines[1]) == {
        "round": 2,
        "mechanism": "poisson-sampled gaussian",
        "q": 0.1,
        "sigma": 1.5,
        "clip": 0.7,
        "count": 1,
        "total": 2,
    }
    assert ledger.count == ledger_of(tmp_path / "ledger", 3, 0.1, 1.5).count == 2


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_truncated_line_counts_and_is_not_appended_to(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "ledger.jsonl"
    for _ in range(3):
        Ledger(path, 0.1, 1.0).open(1, 1.0)
    path.write_bytes(path.read_bytes()[:-cut])
    torn = Ledger(path, 0.1, 1.0)
    assert torn.count == 3
    torn.open(2, 1.0)
    assert Ledger(path, 0.1, 1.0).count == 4


def test_two_who_write_are_both_counted(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    one, other = Ledger(path, 0.1, 1.0), Ledger(path, 0.1, 1.0)
    one.open(1, 1.0)
    other.open(1, 1.0)
    assert Ledger(path, 0.1, 1.0).count == 2


def test_the_budget_is_a_hard_stop(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, 0.1, 1.0, most=2)
    ledger.open(1, 1.0)
    ledger.open(1, 1.0)
    with pytest.raises(BudgetSpent):
        ledger.open(1, 1.0)
    with pytest.raises(BudgetSpent):
        Ledger(path, 0.1, 1.0, most=2).open(2, 1.0)
    assert Ledger(path, 0.1, 1.0).count == 2


def test_another_mechanism_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path, 0.1, 1.0).open(1, 1.0)
    with pytest.raises(RunError, match="sigma 1"):
        Ledger(path, 0.1, 2.0)


# --- several at once ------------------------------------------------------------------------------

_TURNS = """
import sys
from pathlib import Path
from fedstill.errors import BudgetSpent
from fedstill.privacy.ledger import Ledger

ledger = Ledger(Path(sys.argv[1]), 0.1, 1.0, most=80)
print("ready", flush=True)
sys.stdin.readline()
made = 0
for _ in range(40):
    try:
        if sys.argv[2] == "turn":
            ledger.reserve(1, 1.0, 3)
            made += 3
        else:
            ledger.open(0, 1.0)
            made += 1
    except BudgetSpent:
        pass
print(made)
"""


def test_turns_and_votes_of_several_processes_keep_within_the_budget(tmp_path: Path) -> None:
    """Four that start at once: each reads the ledger before any of them has written."""
    path = tmp_path / "ledger.jsonl"
    others = [
        subprocess.Popen(
            [sys.executable, "-c", _TURNS, str(path), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for kind in ("turn", "vote", "turn", "vote")
    ]
    for process in others:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in others:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    made = [int(process.communicate(timeout=FOREVER)[0]) for process in others]
    ledger = Ledger(path, 0.1, 1.0, most=80)
    assert sum(made) == ledger.count == 80
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    totals = [line["total"] for line in lines]
    assert totals == sorted(set(totals))
    assert sum(line["count"] for line in lines) == 80


def test_threads_with_one_ledger_keep_within_the_budget(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, 0.1, 1.0, most=20)
    made: list[int] = []
    start = threading.Barrier(4)

    def turns() -> None:
        start.wait()
        for _ in range(10):
            try:
                ledger.open(1, 1.0)
            except BudgetSpent:
                return
            made.append(1)

    threads = [threading.Thread(target=turns) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == ledger.count == 20


def test_a_turn_is_counted_whole_or_not_at_all(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl", 0.1, 1.0, most=10)
    reserved = ledger.reserve(1, 1.0, 6)
    assert ledger.count == 6
    with pytest.raises(BudgetSpent, match="10 accesses, 6 are made and 5 more"):
        ledger.reserve(2, 1.0, 5)
    assert ledger.count == 6
    for _ in range(6):
        reserved.open(1, 1.0)
    with pytest.raises(BudgetSpent, match="more accesses than its method declares"):
        reserved.open(1, 1.0)
    assert ledger.count == 6
    assert isinstance(reserved, Reservation)


# --- what is read ---------------------------------------------------------------------------------


def test_a_truncated_turn_counts_like_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    for _ in range(2):
        Ledger(path, 0.1, 1.0).reserve(1, 1.0, 7)
    path.write_bytes(path.read_bytes()[:-3])
    assert Ledger(path, 0.1, 1.0).count == 14


def test_a_ledger_without_totals_is_continued(tmp_path: Path) -> None:
    """As older versions wrote it."""
    path = tmp_path / "ledger.jsonl"
    line = {"round": 1, "mechanism": "m", "q": 0.1, "sigma": 1.0, "clip": 1.0, "count": 1}
    path.write_text((json.dumps(line) + "\n") * 300)
    ledger = Ledger(path, 0.1, 1.0)
    assert ledger.count == 300
    ledger.open(2, 1.0)
    assert ledger.count == 301


def test_only_the_end_of_a_long_ledger_is_read(tmp_path: Path) -> None:
    """With damage before it: the totals after the damage have counted it already."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, 0.1, 1.0)
    for _ in range(100):
        ledger.open(1, 1.0)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"damaged\n" * 60 + b"".join(lines[60:]))
    assert ledger.count == 100
    path.write_bytes(b"".join(lines[:50]) + b"damaged\n" * 1000)
    assert ledger.count == 1050


def test_a_total_takes_nothing_back(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    for _ in range(5):
        Ledger(path, 0.1, 1.0).open(1, 1.0)
    path.write_bytes(path.read_bytes().replace(b'"total":5', b'"total":0'))
    assert Ledger(path, 0.1, 1.0).count == 5


def test_the_largest_count_is_that_of_the_client_with_the_most_accesses(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    largest = LargestCount(folder, 0.1, 1.0)
    assert largest.now() == 0
    for client, accesses in ((0, 3), (1, 5)):
        ledger_of(folder, client, 0.1, 1.0).reserve(1, 1.0, accesses)
    assert largest.now() == LargestCount(folder, 0.1, 1.0).now() == 5
    ledger_of(folder, 0, 0.1, 1.0).reserve(2, 1.0, 4)
    assert largest.now() == LargestCount(folder, 0.1, 1.0).now() == 7


def test_the_largest_count_reads_only_ledgers_that_have_changed(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, 0, 0.1, 1.0)
    ledger.reserve(1, 1.0, 5)
    largest = LargestCount(tmp_path, 0.1, 1.0)
    assert largest.now() == 5
    state = ledger.path.stat()
    changed = ledger.path.read_bytes().replace(b"5", b"9")
    ledger.path.write_bytes(changed)
    os.utime(ledger.path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert largest.now() == 5  # it looks as before, so it was not read
    ledger.path.write_bytes(changed)
    assert largest.now() == 9


def test_a_count_once_seen_is_not_taken_back(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, 0, 0.1, 1.0)
    ledger.reserve(1, 1.0, 5)
    largest = LargestCount(tmp_path, 0.1, 1.0)
    assert largest.now() == 5
    ledger.path.unlink()
    assert largest.now() == 5
    tmp_path.rename(tmp_path.with_name("elsewhere"))
    assert largest.now() == 5


def test_a_changed_mechanism_is_refused_by_the_largest_count_too(tmp_path: Path) -> None:
    ledger_of(tmp_path, 0, 0.1, 1.0).open(1, 1.0)
    with pytest.raises(RunError, match="restore the settings"):
        LargestCount(tmp_path, 0.1, 2.0).now()
