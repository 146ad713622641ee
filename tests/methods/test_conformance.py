"""Every method keeps the rules that the engines rely on."""

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from fedstill.methods import METHODS
from fedstill.testing import CHECKS, PRIVATE_CHECKS
from tests.methods.small import SMALL, SMALL_PRIVATE

PRIVATE = [name for name, cls in METHODS.items() if cls().private_form(1.0) is not None]


def together(names: Iterable[str]) -> list[ParameterSet]:
    """One process per method: its checks share a baseline run."""
    return [pytest.param(name, marks=pytest.mark.xdist_group(name), id=name) for name in names]


@pytest.mark.parametrize("check", CHECKS.values(), ids=list(CHECKS))
@pytest.mark.parametrize("name", together(METHODS))
def test_conforms(name: str, check: Any) -> None:
    check(METHODS[name](**SMALL.get(name, {})))


@pytest.mark.parametrize("check", PRIVATE_CHECKS.values(), ids=list(PRIVATE_CHECKS))
@pytest.mark.parametrize("name", together(PRIVATE))
def test_conforms_with_privacy_on(name: str, check: Any) -> None:
    cls = METHODS[name]
    settings = {**SMALL.get(name, {}), **SMALL_PRIVATE.get(name, {})}
    check(cls(**{**cls.PRIVATE_DEFAULTS, **settings}))


def test_these_methods_have_a_private_form() -> None:
    without = {"fednova", "gm", "local-gm", "real", "scaffold"}  # refused: tests/privacy
    assert set(METHODS) - set(PRIVATE) == without
