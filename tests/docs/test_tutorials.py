"""Every command and program that a tutorial prints is run, in the order in which it stands there.

A ``console`` block has commands after ``$``; a ``python`` block with a title is a file of that
name, one without is a program. What a test cannot run (installation, servers) is a ``text`` block.
"""

import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest
import typer

from tests.docs.blocks import run, steps

DOCS = Path(__file__).parent.parent.parent / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
NEEDS = {"deploy": "flwr", "private-runs": "dp_accounting"}


@pytest.mark.slow
@pytest.mark.parametrize("file", TUTORIALS, ids=lambda file: file.stem)
def test_the_tutorial_works(file: Path, tmp_path: Path) -> None:
    needed = NEEDS.get(file.stem)
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    done = 0
    for kind, title, body in steps(file.read_text()):
        if kind == "file":
            (tmp_path / title).write_text(body)
        elif kind == "program":
            (tmp_path / "program.py").write_text(body)
            run([sys.executable, "program.py"], tmp_path)
        else:
            # No shell: a tutorial's commands are those of any system.
            run(shlex.split(body), tmp_path)
        done += 1
    assert done >= 2


def test_there_is_a_tutorial_for_each_beginning() -> None:
    assert {file.stem for file in TUTORIALS} == {
        "first-run",
        "own-images",
        "compare-methods",
        "private-runs",
        "deploy",
        "write-a-method",
    }


def test_the_documented_commands_exist() -> None:
    """Every ``fedstill COMMAND`` of the guides and the README is a command."""
    from fedstill.cli import app

    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert {"run", "compare", "report", "deploy"} <= known
    for file in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]:
        # After a prompt, at the beginning of a code span, or alone in an indented block.
        for word in re.findall(r"(?:^ {4}|[`$] ?)fedstill ([a-z]+)\b", file.read_text(), re.M):
            assert word in known, f"{file.name}: fedstill {word}"
