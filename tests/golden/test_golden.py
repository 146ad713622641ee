import json

import pytest

from fedstill.methods import METHODS
from tests.golden.make import FILE, golden_run, machine

GOLDEN = json.loads(FILE.read_text())


@pytest.mark.parametrize("name", METHODS)
def test_numbers_are_those_of_last_time(name: str) -> None:
    """To what another processor's rounding may change: losses a little, and bytes by the digits
    that a number in a message's header is written with. On the same machine: to the bit."""
    run, golden = golden_run(name), GOLDEN["methods"][name]
    measured, expected = run["rounds"], golden["rounds"]
    assert [m["up"] for m in measured] == pytest.approx([m["up"] for m in expected], abs=64)
    assert [m["down"] for m in measured] == pytest.approx([m["down"] for m in expected], abs=64)
    assert [m["loss"] for m in measured] == pytest.approx([m["loss"] for m in expected], rel=1e-3)
    assert [m["accuracy"] for m in measured] == pytest.approx(
        [m["accuracy"] for m in expected], abs=0.02
    )
    if machine() == GOLDEN["machine"]:
        assert run["sha256"] == golden["sha256"]


def test_every_method_has_golden_numbers() -> None:
    assert set(GOLDEN["methods"]) == set(METHODS)
