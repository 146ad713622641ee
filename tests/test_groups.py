"""Tests that share a start stay in one process of a parallel run."""

import pytest


@pytest.mark.xdist_group("groups")
def test_groups_are_heeded(request: pytest.FixtureRequest) -> None:
    """pytest-xdist ignores them without a word where pytest does not let it rename tests."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("run by `--dist loadgroup`")
    assert request.node.nodeid.endswith("@groups")
