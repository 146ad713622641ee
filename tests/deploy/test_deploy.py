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
from fedstill.deploy.nodes import BoundNode, fingerprint, read_nodes, write_nodes
from fedstill.deploy.services import superlink_service, supernode_service
from fedstill.engine.flower.environment import QUIET
from fedstill.errors import RequestError

pytestmark = [
    pytest.mark.slow,  # with the others that need Flower
    pytest.mark.xdist_group("deploy"),  # one app for all
]

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
    assert len(check_app(folder)) == 11  # three nodes' keys among them
    result = CliRunner().invoke(app, ["deploy", "check", str(folder)])
    assert result.exit_code == 0
    assert "certificates: ok" in result.output
    assert "nodes: ok (no key is bound to its client: when the SuperLink runs" in result.output


def test_a_codec_that_the_server_would_refuse_is_refused_before_any_file(tmp_path: Path) -> None:
    arguments = ["deploy", "init", str(tmp_path / "app"), "fedavg", "--clients", "3"]
    result = CliRunner().invoke(app, [*arguments, "--set", "wire.up=bits2"])
    assert isinstance(result.exception, RequestError)
    assert "wire.up = 'bits2'" in str(result.exception)
    assert not (tmp_path / "app").exists()


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
        assert names == {
            *("experiment.toml", "task.json", "nodes.toml", "pyproject.toml"),
            *(f"fedstill_app/{name}.py" for name in ("__init__", "client", "server")),
        }
        contents = b"".join(archive.read(name) for name in archive.namelist())
    assert not any("key" in name or "certificates" in name for name in names)
    assert b"PRIVATE KEY" not in contents


def test_every_command_of_the_readme_names_files_that_are_there(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    assert f"--superlink {HOST}:8443" in text
    for name in ("certificates/ca.crt", "certificates/server.crt", "certificates/server.key"):
        assert name in text
        assert (folder / name).is_file()
    assert "`keys/node-2.pub`" in text
    for name in ("fedstill-superlink.service", "fedstill-supernode@.service"):
        assert f"services/{name}" in text
        assert (folder / "services" / name).is_file()


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


def some_bound(folder: Path) -> None:
    write_nodes(folder, dict(list(all_bound(folder).items())[:2]))


def another_bound(folder: Path) -> None:
    make_node_key(folder / "other")
    key = fingerprint(folder / "other.pub")
    write_nodes(folder, all_bound(folder) | {1: BoundNode("8", key)})


def all_bound(folder: Path) -> dict[int, BoundNode]:
    keys = folder / "keys"
    return {k: BoundNode(f"{7 + k}", fingerprint(keys / f"node-{k}.pub")) for k in range(3)}


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
        (some_bound, "nodes", "client 2 is not bound to "),
        (another_bound, "nodes", "client 1 is not bound to "),
        (lambda f: (f / "nodes.toml").write_text("clients = 3"), "nodes", "run it again"),
        (lambda f: (f / "nodes.toml").write_text("[clients.0]\nnode = 'x'"), "nodes", "again"),
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


def test_nodes_are_bound_to_clients_by_a_file_of_the_app(folder: Path) -> None:
    assert read_nodes(folder) == {}
    nodes = all_bound(folder) | {1: BoundNode(str(2**64 - 1), "SHA256:x")}  # ids have 64 bits
    write_nodes(folder, nodes)
    assert read_nodes(folder) == nodes
    write_nodes(folder, all_bound(folder))
    assert problems(folder) == {}
    (folder / "nodes.toml").unlink()  # an app of an earlier version
    assert read_nodes(folder) == {}


def test_fingerprints_are_those_of_ssh(folder: Path) -> None:
    import subprocess

    key = folder / "keys" / "node-0.pub"
    if shutil.which("ssh-keygen") is None:
        pytest.skip("needs ssh-keygen")
    listed = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(key)], capture_output=True, text=True, check=True
    )
    assert listed.stdout.split()[1] == fingerprint(key)


@pytest.mark.parametrize("name", ["fedstill-superlink.service", "fedstill-supernode@.service"])
def test_services_come_back_by_themselves_and_may_do_little(made: Path, name: str) -> None:
    text = (made / "services" / name).read_text()
    lines = set(text.splitlines())
    assert {"Restart=always", "StartLimitIntervalSec=0", "User=fedstill"} <= lines
    assert {"NoNewPrivileges=yes", "ProtectSystem=strict", "MemoryMax=75%"} <= lines
    for key, value in QUIET.items():
        assert f'Environment="{key}={value}"' in lines
    if name.startswith("fedstill-supernode"):
        assert "partition-id=%i" in text
        assert f"--superlink {HOST}:8443" in text
        assert 'data="/srv/records"' in text
    else:
        assert f"WorkingDirectory={made}" in lines
        assert "--enable-supernode-auth" in text


def test_services_are_what_systemd_expects(folder: Path, tmp_path: Path) -> None:
    import subprocess

    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    for file in (folder / "services").iterdir():
        text = file.read_text().replace("/srv/fedstill/venv/bin/flower-supernode", "/bin/true")
        unit = tmp_path / file.name.replace("@.", "@0.")
        unit.write_text(text)
        done = subprocess.run(
            ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
        )
        ours = [line for line in done.stderr.splitlines() if file.name.split("@")[0] in line]
        assert not ours, done.stderr


def test_runs_are_started_and_keys_registered_without_pytorch() -> None:
    """Both only talk to the SuperLink: importing PyTorch takes longer than that."""
    import subprocess
    import sys

    program = (
        "import sys, fedstill.deploy.start, fedstill.deploy.register\nprint('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_the_guide_prints_the_services_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/srv/venv/bin/python")
    guide = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    printed = [part.split("```", 1)[0] for part in guide.split("```ini\n")[1:]]
    assert printed == [
        superlink_service(Path("/srv/app"), 8443),
        supernode_service(f"{HOST}:8443", own_data=True),
    ]
