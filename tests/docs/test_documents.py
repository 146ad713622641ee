"""What the documents show works."""

import re
from pathlib import Path
from typing import Any

import pytest

from fedstill.engine.flower.environment import QUIET
from fedstill.testing import CHECKS

ROOT = Path(__file__).parent.parent.parent


def example_method() -> Any:
    text = (ROOT / "docs" / "contributing.md").read_text()
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "class " in block
    )
    import sys
    import types

    module = types.ModuleType("documented_method")
    sys.modules["documented_method"] = module
    exec(compile(code, "docs/contributing.md", "exec"), module.__dict__)
    return module.__dict__["SignVote"]()


@pytest.mark.parametrize("name", CHECKS)
def test_the_documented_method_conforms(name: str) -> None:
    CHECKS[name](example_method())


def test_the_deployment_guide_switches_off_all_telemetry() -> None:
    text = (ROOT / "docs" / "deploy.md").read_text()
    for key, value in QUIET.items():
        assert f"`{key}={value}`" in text
