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
# So do the programs that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

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


# The slow tests that take minutes, the longest first. Most of that is waiting: for heartbeats and
# time-outs of Flower, and for its processes to start. Begun first, each in another process of
# `make slow`, they wait beside each other and beside tests that compute.
_LONGEST = (
    "/docs/test_readme.py",
    "/test_flower_faults.py",
    "/test_flower_restarts.py",
    "/test_flower_simulation.py::test_same_bits",
    "/test_flower_hostile.py",
    "/test_flower_keys.py",
    "/test_flower_outcome.py::test_the_exit_code",
    "/test_flower_hostile_server.py",
    "/test_flower_deployment.py",
    "/test_flower_proxy.py",
    "/test_flower_simulation.py::test_the_command",
    "/docs/test_tutorials.py",
    "/first_hour/",
    "/cli/test_new.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slow tests that take longest; all others stay in their order."""

    def place(item: pytest.Item) -> int:
        if item.get_closest_marker("slow") is not None:
            for number, part in enumerate(_LONGEST):
                if part in item.nodeid:
                    return number
        return len(_LONGEST)

    items.sort(key=place)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--most-seconds", type=float, help="begin no further test after this long")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """`make quick` has a minute; what it had no time for is skipped, and says so."""
    most = item.config.getoption("--most-seconds")
    share = 1.0 if "test_conformance.py" in item.nodeid else 0.65
    if most is not None and time.monotonic() - BEGUN > share * most:
        pytest.skip("no time left: `make test` runs it")
