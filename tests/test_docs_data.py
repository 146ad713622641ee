"""Every form of data that docs/data.md shows can be run as shown."""

import io
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedstill.cli import app
from fedstill.config import resolve
from fedstill.config.nested import read_toml

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "data.md").read_text()
OWN = PAGE[PAGE.index("## Your own data") : PAGE.index("## What was measured")]
COMMANDS = re.findall(r"^    \$ (fedstill run .*)$", OWN, re.M)


def png(value: int) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(value).integers(0, 255, (8, 8), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the page speaks of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSTILL_CACHE", str(tmp_path / "cache"))
    wards = ("east", "north", "west")
    rows = [f"{20 + i},{'fm'[i % 2]},{('no', 'yes')[i % 3 == 0]},{wards[i % 3]}" for i in range(45)]
    write(tmp_path / "patients.csv", "\n".join(["age,sex,sick,ward", *rows]).encode())
    split = [
        f"{20 + i},{'no' if i % 2 else 'yes'},{'test' if i > 15 else 'train'}" for i in range(20)
    ]
    for name in wards:
        write(
            tmp_path / "hospitals" / f"{name}.csv", "\n".join(["age,sick,split", *split]).encode()
        )
    named = ["photo,label,ward"]
    for i in range(20):
        kind = ("cat", "dog")[i % 2]
        write(tmp_path / "photos" / kind / f"{i}.png", png(i))
        for site in ("hospital-A", "hospital-B"):
            write(tmp_path / "sites" / site / kind / f"{i}.png", png(i))
        named.append(f"photos/{kind}/{i}.png,{kind},{wards[i // 2 % 2]}")
    write(tmp_path / "index.csv", "\n".join(named).encode())
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    np.savez(tmp_path / "arrays.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    return tmp_path


def test_there_is_a_command_for_every_form() -> None:
    assert len(COMMANDS) == 6


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands(command: str, files: Path) -> None:
    words = shlex.split(command)[1:]
    more = ["--rounds", "1", "--workers", "1"]
    if "feddm" in words:
        more += ["--set", "method.iterations=2", "--set", "method.server_epochs=1"]
    if "arrays.npz" in words or "photos" in words:  # no owners
        more += ["--clients", "2", "--partition", "iid"]
    outcome = CliRunner().invoke(app, [*words, *more])
    assert outcome.exit_code == 0, outcome.output
    assert "after 1 round" in outcome.output


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_python_code(files: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", OWN, re.S)
    exec(compile(code.replace('"feddm"', '"real"'), "docs/data.md", "exec"), {})
    assert len(list((files / "runs").iterdir())) == 4


def test_the_example_of_the_hospitals_is_a_configuration() -> None:
    experiment = resolve(
        {"method": "fedavg", **read_toml(ROOT / "examples" / "heart-disease.toml")}
    )
    data = experiment.data
    assert data.ranges is not None
    assert data.categories is not None
    assert len(data.ranges) + len(data.categories) == 10
