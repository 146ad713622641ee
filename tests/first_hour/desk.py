"""What a user does: commands in a terminal, programs, and looking at what was written."""

import csv
import json
import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.waiting import FOREVER


@dataclass(frozen=True)
class Desk:
    """A working folder and the programs of an environment."""

    folder: Path
    programs: Path

    def command(self, line: str, code: int = 0) -> str:
        """Run one line of a terminal; all that was printed. ``code`` is the expected exit code."""
        done = self._run(shlex.split(line))
        said = done.stdout + done.stderr
        assert done.returncode == code, f"$ {line}\n{said}"
        assert "Traceback" not in said, f"$ {line}\n{said}"
        return said

    def answer(self, line: str) -> Any:
        """The outcome of a command with ``--json``: the last line of its output."""
        done = self._run(shlex.split(line))
        assert done.returncode == 0, f"$ {line}\n{done.stderr}"
        return json.loads(done.stdout.splitlines()[-1])

    def python(self, program: str) -> str:
        """Run a program; what it printed."""
        done = self._run(["python", "-c", program])
        assert done.returncode == 0, f"{program}\n{done.stdout}{done.stderr}"
        return done.stdout

    def file(self, path: str) -> str:
        """The text of a file."""
        return (self.folder / path).read_text()

    def table(self, path: str) -> list[dict[str, str]]:
        """The rows of a CSV file."""
        return list(csv.DictReader(self.file(path).splitlines()))

    def _run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        self.folder.mkdir(exist_ok=True)
        kept = ("OMP_NUM_THREADS", "LANG")
        environment = {
            **{name: os.environ[name] for name in kept if name in os.environ},
            "PATH": f"{self.programs}{os.pathsep}{os.defpath}",
            "HOME": str(self.folder.parent),  # an empty cache
            "COLUMNS": "120",
        }
        return subprocess.run(
            words,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=FOREVER,
            check=False,
        )
