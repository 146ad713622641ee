"""The examples that have no test of their own run as their first lines say."""

import json
import random
import re
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


@pytest.mark.slow
def test_four_hospitals_from_the_files_of_uci(tmp_path: Path) -> None:
    """The files are made up here, in UCI's form: fourteen columns, "?" where a value is missing."""
    drawn = random.Random(0)
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        rows = []
        for number in range(60):
            sick = drawn.random() < 0.5
            age, pressure, rate = 40 + 25 * sick, 120 + 30 * sick, 180 - 60 * sick
            measured = [age, number % 2, 1 + 3 * sick, pressure, 233, 0, 0, rate, int(sick), 1.5]
            cells = [f"{float(value)}" for value in measured]
            cells[3] = "?" if number == 7 else cells[3]
            rows.append(",".join([*cells, "?", "?", "?", str(2 * sick)]))
        (tmp_path / f"processed.{hospital}.data").write_text("\n".join(rows))
    said = run(tmp_path, "heart_disease.py", "--rounds", "2", "--address", tmp_path.as_uri())
    table = (tmp_path / "heart-disease" / "va.csv").read_text().splitlines()
    assert len(table) == 1 + 59  # one record has a hole
    assert table[0].endswith("st_depression,disease,split")
    assert {line.rpartition(",")[2] for line in table[1:]} == {"train", "test"}
    lines = {line.split()[0].strip(","): line for line in said.splitlines() if "%" in line}
    assert {"feddm", "fedavg", "central"} <= set(lines)
    assert float(re.findall(r"([\d.]+)%", lines["feddm"])[0]) > 80
    summary = json.loads(
        (tmp_path / "runs" / "heart-disease" / "feddm" / "summary.json").read_text()
    )
    assert summary["clients"] == 4


def test_without_a_network_the_hospitals_example_says_what_to_do(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "heart_disease.py")]
    nowhere = ["--address", (tmp_path / "nothing").as_uri()]
    done = subprocess.run(
        [*command, *nowhere], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "--data-dir" in done.stderr
    assert "Traceback" not in done.stderr
