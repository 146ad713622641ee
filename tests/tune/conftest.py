from pathlib import Path

import pytest

from tests.evaluate.distilled import distilled_run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a synthetic set."""
    return distilled_run(tmp_path_factory.mktemp("tune") / "run")
