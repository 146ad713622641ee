"""The fuzzer itself: it finds what is planted, and every target runs."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from fedstill.errors import RequestError
from tests.fuzz import run
from tests.fuzz.target import Check, Make, Target


def target(check: Check) -> Target:
    def prepare(_: Path) -> tuple[Make, Check]:
        return lambda rng: rng.randrange(10), check

    return Target("planted", 1.0, prepare)


def reader(number: int) -> None:
    """Refuses some, and cannot read one."""
    if number < 5:
        raise RequestError("too small")
    if number == 7:
        raise ValueError("planted")


def test_a_defect_is_found_and_can_be_had_again() -> None:
    counts = run.in_process(target(reader), 0, range(100))
    numbers = [run.stream(0, "planted", case).randrange(10) for case in range(100)]
    assert counts.refused == sum(number < 5 for number in numbers)
    assert len(counts.defects) == numbers.count(7) > 0
    assert counts.accepted == 100 - counts.refused - len(counts.defects)
    first = counts.defects[0]
    assert f"case {numbers.index(7)}: " in first
    assert "ValueError: planted" in first


def test_a_crash_costs_one_case() -> None:
    def crash(number: int) -> None:
        if number == 7:
            os.abort()

    numbers = [run.stream(0, "planted", case).randrange(10) for case in range(30)]
    counts = run.in_process(target(crash), 0, range(30))
    assert len(counts.defects) == numbers.count(7)
    assert all("status -6" in defect for defect in counts.defects)


def test_a_hang_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forever(_: Any) -> None:
        while True:
            try:
                sum(range(1000))
            except Exception:  # what a reader might catch
                continue

    monkeypatch.setattr(run, "LONGEST", 0.05)
    counts = run.in_process(target(forever), 0, range(3))
    assert [defect for defect in counts.defects if "did not end" in defect] == counts.defects
    assert len(counts.defects) == 3


def test_a_case_that_waits_for_ever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(number: int) -> None:
        if number == 7:
            threading.Event().wait()

    monkeypatch.setattr(run, "STUCK", 1)
    numbers = [run.stream(0, "planted", case).randrange(10) for case in range(30)]
    counts = run.in_process(target(wait), 0, range(30))
    assert len(counts.defects) == numbers.count(7)
    assert all("status -9" in defect for defect in counts.defects)


def test_memory_without_bound_is_found() -> None:
    def fill(number: int) -> None:
        if number == 7:
            bytes(run.ROOM + 2**30)

    counts = run.in_process(target(fill), 0, range(30))
    assert counts.defects
    assert all("MemoryError" in defect for defect in counts.defects)


TRAINED = ("wire", "states")  # their messages come from training with every method


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(one, id=one.name, marks=[pytest.mark.slow] if one.name in TRAINED else [])
        for one in run.TARGETS
    ],
)
def test_every_target(one: Target) -> None:
    """A few cases of another seed than `make fuzz`; the same ones each time. Of settings, one in
    twenty is accepted."""
    cases = 200 if one.name == "settings" else 60
    counts = run.in_process(one, 20, range(cases))
    assert counts.defects == []
    assert counts.accepted + counts.refused == cases
    assert counts.accepted > 0


def test_cases_depend_on_nothing_but_seed_target_and_number(tmp_path: Path) -> None:
    for one in run.TARGETS:
        if one.name in TRAINED:
            continue
        made = []
        for name in ("a", "b"):
            folder = tmp_path / one.name / name
            folder.mkdir(parents=True)
            make, _ = one.prepare(folder)
            made.append([repr(make(run.stream(3, one.name, case))) for case in (5, 2, 9)])
        assert made[0] == made[1], one.name
    assert sum(run.plan(run.TARGETS, 10**6).values()) == pytest.approx(10**6, abs=20)
