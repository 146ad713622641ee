"""Configurations that were made to do harm."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedstill.config import resolve
from fedstill.config.nested import parse_override, read_toml
from fedstill.errors import RequestError

DEEP: Any = 1
for _ in range(2000):
    DEEP = {"a": DEEP}

FILES = {
    "deep lists": b"a = " + b"[" * 100_000,
    "deep tables": b".".join([b"a"] * 3000) + b" = 1",
    "a long key": b"a." * 2**16 + b"a = 1",
    "many levels": b".".join([b"a"] * 90) + b" = 1",
    "5,000 digits": b"seed = " + b"9" * 5000,
    "bad UTF-8": b'method = "\xff\xfe"',
    "large": b"# " + b"x" * 2**21,
    "nothing valid": b"\x00\x01\x02",
    "control characters": b'method = "\x1b[2J"',
}


@pytest.mark.parametrize("what", FILES)
def test_a_hostile_file_is_one_line(tmp_path: Path, what: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(FILES[what])
    with pytest.raises(RequestError) as caught:
        read_toml(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("seed=" + "9" * 5000, "4300 digits"),
        ("seed=" + "[" * 100_000, "nested too deep"),
        ("seed={" + "a." * 50_000 + "a=1}", "more than 100 dots"),
        ("seed=" + "[" * 50 + "]" * 50, "nested more than 20 deep"),
    ],
)
def test_a_hostile_setting_is_one_line(text: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        parse_override(text)
    assert len(str(caught.value)) < 500


def test_a_deep_request_is_refused() -> None:
    with pytest.raises(RequestError, match="nested more than 20 deep"):
        resolve({"method": "fedavg", **DEEP})
    with pytest.raises(RequestError, match="nested more than 20 deep"):
        resolve({"method": {"name": "fedavg", "x": [DEEP]}})


def test_nothing_in_a_list_is_refused() -> None:
    """TOML has no null: config.toml could not be written."""
    for width in ([None], [[None]], [{"a": [None]}]):
        with pytest.raises(RequestError, match="null"):
            resolve({"method": "fedavg", "model": {"name": "mlp", "width": width}})
    resolved = resolve({"method": "fedavg", "model": {"name": "mlp", "width": [{"a": None}]}})
    assert resolved.table["model"]["width"] == [{}]


def test_a_number_that_python_does_not_write(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('method = "fedavg"\nquorum = 0x' + "f" * 5000)
    with pytest.raises(RequestError, match="quorum"):
        resolve(read_toml(path))
    with pytest.raises(RequestError, match=r"clients: expected int .*it is '<+\.\.\.\)"):
        resolve({"method": "fedavg", "clients": "<" * 10_000})


@pytest.mark.slow
@pytest.mark.parametrize("what", ["deep lists", "5,000 digits", "bad UTF-8", "control characters"])
def test_the_command_line_says_one_line(tmp_path: Path, what: str) -> None:
    path = tmp_path / "\x1b]0;owned\x07config.toml"
    path.write_bytes(FILES[what])
    words = [sys.executable, "-m", "fedstill", "run", "--config", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("fedstill: ")
    assert done.stderr.count("\n") == 1
    assert "\x1b" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "data",
    [
        {"name": "x" * 5000},
        {"name": "digits", "dir": "~nobody-of-this-name/x"},
        {"name": "digits", "dir": "x" * 5000},
        {"name": "digits", "vocabulary": "\x00"},
    ],
)
def test_what_cannot_be_a_path_is_refused(data: dict[str, str]) -> None:
    with pytest.raises(RequestError, match="data") as refused:
        resolve({"method": "fedavg", "data": data})
    if str(data.get("dir", "")).startswith("~"):
        assert str(refused.value).startswith("data.dir '~nobody-of-this-name/x'")
