import os
import tempfile
import time
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

BEGUN = time.monotonic()

# Tests run in parallel on few cores: threads that wait for each other would only slow them down.
# Engines set the number of threads that their results depend on themselves.
torch.set_num_threads(1)

# How long an example takes on a busy machine says nothing about the code. The same examples each
# time: a test that fails today failed yesterday too.
settings.register_profile(
    "no-deadline",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.load_profile("no-deadline")


@pytest.fixture(scope="session", autouse=True)
def own_cache() -> Iterator[None]:
    """A cache of the tests' own: what the user's cache holds must not decide a test."""
    with tempfile.TemporaryDirectory(prefix="fedstill-cache-") as folder:
        os.environ["FEDSTILL_CACHE"] = folder
        yield


# Tests that start Flower's programs, or Ray. Each starts many processes and waits for them: one
# after the other, in one of `make slow`'s processes, while the others have the rest.
_STARTS_FLOWER = (
    "/test_flower_",
    "/deploy/test_",
    "test_tutorials.py::test_the_tutorial_works[deploy]",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group slow tests for `--dist loadgroup`."""
    for item in items:
        slow = item.get_closest_marker("slow") is not None
        if slow and any(part in item.nodeid for part in _STARTS_FLOWER):
            item.add_marker(pytest.mark.xdist_group("flower"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--most-seconds", type=float, help="begin no further test after this long")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """`make quick` has a minute; what it had no time for is skipped, and says so."""
    most = item.config.getoption("--most-seconds")
    share = 1.0 if "test_conformance.py" in item.nodeid else 0.65
    if most is not None and time.monotonic() - BEGUN > share * most:
        pytest.skip("no time left: `make test` runs it")
