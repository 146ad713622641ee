"""Conformance: what must hold for every method, built-in or user-supplied.

import pytest
from fedstill.testing import CHECKS

@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_my_method_conforms(check):
    check(MyMethod(learning_rate=0.1))
"""

from fedstill.testing.conformance import CHECKS, PRIVATE_CHECKS
from fedstill.testing.toys import (
    TOY_PRIVACY,
    as_vector,
    bits,
    on,
    toy_data,
    toy_digits,
    toy_experiment,
    toy_run,
    toy_text,
)

__all__ = [
    "CHECKS",
    "PRIVATE_CHECKS",
    "TOY_PRIVACY",
    "as_vector",
    "bits",
    "on",
    "toy_data",
    "toy_digits",
    "toy_experiment",
    "toy_run",
    "toy_text",
]
