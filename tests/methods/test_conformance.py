"""Every method keeps the rules that the engines rely on."""

from typing import Any

import pytest

from fedstill.methods import METHODS
from fedstill.testing import CHECKS
from tests.methods.small import SMALL


@pytest.mark.parametrize("check", CHECKS.values(), ids=list(CHECKS))
@pytest.mark.parametrize("name", METHODS)
def test_conforms(name: str, check: Any) -> None:
    check(METHODS[name](**SMALL.get(name, {})))
