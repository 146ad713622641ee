"""The README: its commands and programs run, its paths exist, and the package's copy has none."""

import importlib.util
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import run, steps

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "README.md").read_text()
NEEDS = {"--engine flower": "ray", "deploy": "flwr", "epsilon": "dp_accounting", "tune": "optuna"}
# What the programs of the README take for granted: a user's own arrays and network.
OWN = """
import numpy as np
from torch import nn

generator = np.random.default_rng(0)
y_east, y_west = generator.integers(0, 2, 60), generator.integers(0, 2, 40)
x_east, x_west = (
    (y[:, None, None] * 90 + generator.integers(0, 120, (len(y), 8, 8))).astype("uint8")
    for y in (y_east, y_west)
)
my_resnet = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 2)
)
"""
CHECK = """
assert result.summary.clients == 2
assert result.summary.accuracy > 0.7
assert not any(isinstance(layer, nn.BatchNorm2d) for layer in trained.modules())
"""


def missing(command: str) -> bool:
    """Whether a command needs an extra that is not installed here."""
    return any(
        word in command and importlib.util.find_spec(module) is None
        for word, module in NEEDS.items()
    )


@pytest.mark.slow
def test_the_commands_run(tmp_path: Path) -> None:
    commands = [body for kind, _, body in steps(TEXT) if kind == "command"]
    assert len(commands) > 15
    for command in commands:
        if not missing(command):
            run(shlex.split(command), tmp_path)
    assert (tmp_path / "runs" / "index.html").exists()
    assert (tmp_path / "comparison.html").exists()


@pytest.mark.slow
def test_own_data_and_own_network(tmp_path: Path) -> None:
    programs = [body for kind, _, body in steps(TEXT) if kind == "program"]
    own_data, own_network = programs
    assert len([line for line in own_data.splitlines() if line.strip()]) <= 5
    assert len(own_network.splitlines()) == 3
    (tmp_path / "program.py").write_text("\n".join([OWN, *programs, CHECK]))
    run([sys.executable, "program.py"], tmp_path)


def paths(text: str) -> list[str]:
    """Where its images and links lead, addresses and places within the text apart."""
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [path for path in found if not path.startswith(("https://", "#"))]


def test_every_path_exists() -> None:
    assert len(paths(TEXT)) > 20
    for path in paths(TEXT):
        assert (ROOT / path.partition("#")[0]).exists(), path


def test_the_packages_readme_has_no_path_of_this_repository() -> None:
    pytest.importorskip("hatchling", reason="the extra `dev`")
    safe = runpy.run_path(str(ROOT / "tools" / "package_readme.py"))["safe"]
    alone = safe(TEXT, None)
    assert paths(alone) == []
    assert "![" not in alone
    assert "as `fedstill show` draws it" not in alone  # the caption of an image
    assert alone.count("```") == TEXT.count("```")
    known = safe(TEXT, "https://example.org/fedstill")
    assert paths(known) == []
    assert "(https://example.org/fedstill/raw/main/docs/images/report.png)" in known
    assert "(https://example.org/fedstill/blob/main/docs/data.md#your-own-data)" in known


def test_it_names_the_two_commands_and_the_five_papers() -> None:
    assert "make demo" in TEXT
    assert "make test" in TEXT
    papers = TEXT[TEXT.index("## The five papers") : TEXT.index("## Private runs")]
    assert len(re.findall(r"^\| `\w+` \| \[.+\]\(https://", papers, re.M)) == 5
