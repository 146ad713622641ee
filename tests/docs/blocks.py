"""The blocks of a document that can be run, and running them."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.waiting import FOREVER

_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.M | re.S)


def steps(text: str) -> Iterator[tuple[str, str, str]]:
    """Kind, title and contents of each block that is run."""
    for kind, title, body in _BLOCK.findall(text):
        if kind == "python":
            yield ("file" if title else "program"), title, body
        elif kind == "console":
            for line in body.replace("\\\n", " ").splitlines():
                assert line.startswith("$ "), f"not a command: {line}"
                yield "command", "", line.removeprefix("$ ").partition("  #")[0]
        else:
            assert kind in ("text", "toml"), kind


def run(command: list[str], folder: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "100"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=4 * FOREVER
    )
    said = f"{shlex.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert done.returncode == 0, said
    assert "Traceback" not in done.stderr, said
