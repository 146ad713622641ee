"""The examples that have no test of their own run as their first lines say."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import FOREVER

ROOT = Path(__file__).parents[2]


def run(folder: Path, name: str, *options: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / name), *options]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=4 * FOREVER, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_three_sites_are_three_clients(tmp_path: Path) -> None:
    said = run(tmp_path, "three_sites.py", "--rounds", "1")
    assert "3 sites: accuracy" in said
    assert (tmp_path / "runs" / "three-sites" / "report.html").exists()


@pytest.mark.slow
def test_a_private_run_has_its_statement(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting", reason="the extra `privacy`")
    said = run(tmp_path, "private_statement.py", "--rounds", "1", "--epsilon", "5")
    assert "PRIVACY STATEMENT" in said
    assert (tmp_path / "runs" / "private" / "statement.html").exists()


def test_the_gallery_lists_every_example() -> None:
    page = (ROOT / "docs" / "examples.md").read_text()
    for example in (ROOT / "examples").iterdir():
        if example.suffix in (".py", ".toml"):
            assert f"examples/{example.name}" in page
