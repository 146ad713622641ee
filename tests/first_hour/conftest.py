"""A fresh environment with an installed fedstill, and an empty folder to work in."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.first_hour.desk import Desk

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel that a user would install, and nothing of this repository.

    Its dependencies are those of the environment that runs the tests: PyTorch is too large to be
    installed again. They come by a path file, which does not run the path files of that folder, so
    the editable fedstill there is not seen.
    """
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    environment = folder / "venv"
    venv.create(environment, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
    offline = ["--no-deps", "--no-index", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", *offline, str(wheel)], check=True, capture_output=True)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin"


@pytest.fixture
def desk(installation: Path, tmp_path: Path) -> Desk:
    """The user's folder, where only the installed fedstill is found."""
    made = Desk(tmp_path / "work", installation)
    where = made.python("import fedstill; print(fedstill.__file__)")
    assert Path(where.strip()).is_relative_to(installation.parent)
    return made
