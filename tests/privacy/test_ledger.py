"""The ledger: on disk before the access, whole after any kill, never forgetful."""

import json
from pathlib import Path

import pytest

from fedstill.errors import BudgetSpent, RunError
from fedstill.privacy.ledger import Ledger, ledger_of


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
