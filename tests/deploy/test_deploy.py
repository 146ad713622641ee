"""``fedstill deploy init`` and ``check``: no process is started, but the extra is needed."""

import json
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="needs the extra: pip install 'fedstill[flower]'")

from fedstill.cli import app
from fedstill.config.nested import read_toml
from fedstill.deploy import check_app
from fedstill.deploy.app import Address
from fedstill.deploy.keys import make_certificates, make_node_key
from fedstill.engine.flower.environment import QUIET
from fedstill.errors import RequestError

pytestmark = pytest.mark.slow  # with the others that need Flower

HOST = "fl.example.org"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "app"
    arguments = ["deploy", "init", str(folder), "fedavg", "--address", f"{HOST}:8443"]
    result = CliRunner().invoke(app, [*arguments, "--partition", "nodes", "--model", "mlp"])
    assert result.exception is None, result.output
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "app"
    shutil.copytree(made, copy)
    config = copy / "flower" / "config.toml"
    config.write_text(config.read_text().replace(str(made.resolve()), str(copy)))
    return copy


def problems(folder: Path, node: int | None = None, data: Path | None = None) -> dict[str, str]:
    return {f.what: f.problem for f in check_app(folder, node, data) if f.problem is not None}


def test_a_new_app_passes_all_checks(folder: Path) -> None:
    assert problems(folder) == {}
    assert len(check_app(folder)) == 10  # three nodes' keys among them
    result = CliRunner().invoke(app, ["deploy", "check", str(folder)])
    assert result.exit_code == 0
    assert "certificates: ok" in result.output


def test_the_app_is_what_flower_expects(folder: Path) -> None:
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    flower = project["tool"]["flwr"]["app"]
    assert flower["components"]["clientapp"] == "fedstill_app.client:app"
    assert not any("key" in pattern for pattern in flower["fab-include"])
    experiment = read_toml(folder / "experiment.toml")
    assert (
        experiment["engine"] | {"name": "flower", "round_timeout": 3600.0} == experiment["engine"]
    )
    assert experiment["method"]["name"] == "fedavg"
    task = json.loads((folder / "task.json").read_text())
    assert task["shape"] == [1, 8, 8]
    assert task["clients"] == 3
    exports = (folder / "environment.sh").read_text()
    for key, value in QUIET.items():
        assert f"export {key}={value}" in exports


def test_the_bundle_holds_no_secret(folder: Path, tmp_path: Path) -> None:
    """What Flower itself would send to the nodes."""
    import subprocess
    import zipfile

    from fedstill.engine.flower.environment import command, flower_environment

    done = subprocess.run(
        [command("flwr"), "build", "--app", str(folder)],
        cwd=tmp_path,
        env=flower_environment(tmp_path / "home"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (bundle,) = tmp_path.glob("*.fab")
    with zipfile.ZipFile(bundle) as archive:
        names = {name for name in archive.namelist() if not name.startswith(".info")}
        assert {"experiment.toml", "task.json", "fedstill_app/client.py"} <= names
        contents = b"".join(archive.read(name) for name in archive.namelist())
    assert not any("key" in name or "certificates" in name for name in names)
    assert b"PRIVATE KEY" not in contents


def test_every_command_of_the_readme_names_files_that_are_there(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    assert f"--superlink {HOST}:8443" in text
    for name in ("certificates/ca.crt", "certificates/server.crt", "certificates/server.key"):
        assert name in text
        assert (folder / name).is_file()
    for number in range(3):
        assert f"flwr supernode register keys/node-{number}.pub deployment" in text


def other_authority(folder: Path) -> None:
    make_certificates(folder / "others", HOST)
    shutil.copy(folder / "others" / "ca.crt", folder / "certificates" / "ca.crt")


def other_host(folder: Path) -> None:
    shutil.rmtree(folder / "certificates")
    make_certificates(folder / "certificates", "elsewhere.example.org")


def other_server_key(folder: Path) -> None:
    make_certificates(folder / "others", HOST)
    shutil.copy(folder / "others" / "server.key", folder / "certificates" / "server.key")


def other_public_key(folder: Path) -> None:
    make_node_key(folder / "other")
    shutil.copy(folder / "other.pub", folder / "keys" / "node-1.pub")


def pem_key(folder: Path) -> None:
    shutil.copy(folder / "certificates" / "server.key", folder / "keys" / "node-1")


def no_key(folder: Path) -> None:
    (folder / "keys" / "node-1").unlink()
    (folder / "keys" / "node-1.pub").unlink()


def replaced(file: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new))

    return change


@pytest.mark.parametrize(
    ("change", "what", "problem"),
    [
        (other_authority, "certificates", "not issued by ca.crt"),
        (other_host, "certificates", f"but nodes connect to {HOST}"),
        (other_server_key, "server's key", "does not belong to server.crt"),
        (lambda f: (f / "certificates/server.key").chmod(0o644), "server's key", "chmod 600"),
        (lambda f: (f / "certificates/ca.crt").write_text("x"), "certificates", "not a PEM"),
        (lambda f: (f / "keys/node-2").chmod(0o640), "key node-2", "chmod 600"),
        (other_public_key, "key node-1", "does not belong to node-1"),
        (pem_key, "key node-1", "not an unencrypted OpenSSH key"),
        (no_key, "key node-1", "is missing; `fedstill deploy key"),
        (replaced("experiment.toml", "fedavg", "fedagv"), "experiment", "did you mean 'fedavg'"),
        (replaced("experiment.toml", "clients = 3", "clients = 4"), "experiment", "is for 3"),
        (replaced("experiment.toml", "round_timeout = 3600.0", ""), "experiment", "is not set"),
        (replaced("pyproject.toml", "fedstill==", "fedstill==9."), "versions", "the app needs"),
        (replaced("pyproject.toml", "app.server:app", "app.sever:app"), "app", "does not exist"),
        (
            replaced("flower/config.toml", "root-cert", "insecure = true\nroot-cert"),
            "connection",
            "insecure",
        ),
        (replaced("flower/config.toml", "ca.crt", "cb.crt"), "connection", "was the folder moved"),
    ],
)
def test_what_is_wrong_is_found(
    change: Callable[[Path], None], what: str, problem: str, folder: Path
) -> None:
    change(folder)
    found = problems(folder)
    assert what in found
    assert problem in found[what]
    result = CliRunner().invoke(app, ["deploy", "check", str(folder)])
    assert f"{what}: WRONG" in result.output
    assert "checks failed" in str(result.exception)


def test_expired_certificates_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import datetime, timedelta

    from fedstill.deploy import check

    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(days=365 * 5 - 3)  # type: ignore[arg-type]

    monkeypatch.setattr(check, "datetime", Later)
    assert "expires on" in problems(folder)["certificates"]


def test_a_nodes_data_are_tried_before_anything_starts(folder: Path, tmp_path: Path) -> None:
    images = np.zeros((4, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "good.npz", x_train=images, y_train=np.arange(4))
    np.savez(tmp_path / "wrong.npz", x_train=images[:, 1:], y_train=np.arange(4))
    assert problems(folder, node=1, data=tmp_path / "good.npz") == {}
    assert "(1, 7, 8)" in problems(folder, node=1, data=tmp_path / "wrong.npz")["data"]
    assert "no such file" in problems(folder, node=1, data=tmp_path / "none.npz")["data"]
    assert "clients 0 to 2" in problems(folder, node=3, data=tmp_path / "good.npz")["data"]


def test_a_folder_in_use_is_left_alone(folder: Path) -> None:
    result = CliRunner().invoke(app, ["deploy", "init", str(folder), "fedavg"])
    assert isinstance(result.exception, RequestError)
    assert "is not empty" in str(result.exception)
    with pytest.raises(RequestError, match=r"no experiment\.toml"):
        check_app(folder / "keys")


@pytest.mark.parametrize("text", ["", "host", "host:", ":80", "host:zero", "host:0", "host:70000"])
def test_addresses_are_host_and_port(text: str) -> None:
    with pytest.raises(RequestError, match="HOST:PORT"):
        Address.parse(text)


def test_a_key_made_on_the_node(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["deploy", "key", str(tmp_path / "mine")])
    assert result.exception is None
    assert (tmp_path / "mine").stat().st_mode & 0o077 == 0
    assert (tmp_path / "mine.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
