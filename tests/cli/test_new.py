"""``fedstill new``: templates that work as they are."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedstill.cli import app
from fedstill.errors import RequestError
from tests.waiting import FOREVER

KINDS = ["method", "data", "model"]


def new(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["new", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_is_short_valid_python_and_never_overwrites(kind: str, tmp_path: Path) -> None:
    said = new(kind, "my-Thing", "--out", str(tmp_path))
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["my_thing.py", "test_my_thing.py"]
    for path in tmp_path.iterdir():
        text = path.read_text()
        assert len(text.splitlines()) <= 60
        assert max(map(len, text.splitlines())) <= 100
        assert "$" not in text
        compile(text, path.name, "exec")
    assert "my_thing" in said.splitlines()[-1]
    with pytest.raises(RequestError, match=r"my_thing\.py exists already"):
        new(kind, "my_thing", "--out", str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("methods", "mine"), "no kind 'methods'; did you mean 'method'"),
        (("method", "2fast"), "'2fast' is no name for a module"),
        (("method", "class"), "'class' is no name for a module"),
        (("model", "torch"), "'torch' is the name of another module"),
    ],
)
def test_wrong_names_are_refused(
    arguments: tuple[str, str], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=complaint):
        new(*arguments, "--out", str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_templates_own_test_passes_and_its_command_runs(kind: str, tmp_path: Path) -> None:
    said = new(kind, "my_start", "--out", str(tmp_path))
    command = [sys.executable, "-m", "pytest", "-q", "test_my_start.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=FOREVER)
    assert ran.returncode == 0, ran.stdout
    use = said.splitlines()[-1].partition(f"cd {tmp_path}; ")[2].split()
    if use[0] == "python":  # it has no options; one round of its run is enough
        program_file = tmp_path / use[1]
        text = program_file.read_text()
        assert "rounds=5" in text
        program_file.write_text(text.replace("rounds=5", "rounds=1"))
    fast = ["--rounds", "1", "--clients", "2"] if use[0] == "fedstill" else []
    program = ["-m", "fedstill"] if use[0] == "fedstill" else []
    ran = subprocess.run(
        [sys.executable, *program, *use[1:], *fast],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=FOREVER,
    )
    assert ran.returncode == 0, ran.stderr
    assert "report.html" in ran.stdout
