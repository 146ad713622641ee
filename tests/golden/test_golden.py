import json

import pytest

from fedstill.methods import METHODS
from tests.golden.make import FILE, golden_run

GOLDEN = json.loads(FILE.read_text())


@pytest.mark.parametrize("name", METHODS)
def test_numbers_are_those_of_last_time(name: str) -> None:
    """Up to the rounding of another processor, which changes losses a little, and bytes by the
    digits of a number in a message's header."""
    measured, expected = golden_run(name), GOLDEN[name]
    assert [m["up"] for m in measured] == pytest.approx([m["up"] for m in expected], abs=64)
    assert [m["down"] for m in measured] == pytest.approx([m["down"] for m in expected], abs=64)
    assert [m["loss"] for m in measured] == pytest.approx([m["loss"] for m in expected], rel=1e-3)
    assert [m["accuracy"] for m in measured] == pytest.approx(
        [m["accuracy"] for m in expected], abs=0.02
    )


def test_every_method_has_golden_numbers() -> None:
    assert set(GOLDEN) == set(METHODS)
