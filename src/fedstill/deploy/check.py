"""``fedstill deploy check``: finds what is wrong before anything starts."""

import dataclasses
import importlib.metadata
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from fedstill.config import Experiment, resolve
from fedstill.config.nested import read_toml
from fedstill.config.registry import build_model
from fedstill.deploy.app import Address
from fedstill.deploy.keys import public_path
from fedstill.deploy.link import LINK
from fedstill.deploy.nodes import fingerprint, read_nodes
from fedstill.engine.flower import require_flower
from fedstill.engine.flower.description import Description, read_description
from fedstill.engine.flower.node import node_for
from fedstill.errors import FedstillError, RequestError
from fedstill.version import VERSION

_SOON = timedelta(days=30)


@dataclass(frozen=True)
class Finding:
    """The result of one check. ``problem`` is ``None`` if it passed."""

    what: str
    problem: str | None = None
    note: str | None = None  # what is still to be done


class _Problem(Exception):
    """What is wrong, and how to fix it."""


def check_app(folder: Path, node: int | None = None, data: Path | None = None) -> list[Finding]:
    """All findings: of the server's side, or of node number ``node`` with its ``data``."""
    require_flower()
    if not (folder / "experiment.toml").is_file():
        raise RequestError(f"{folder}: no experiment.toml; `fedstill deploy init` makes an app")
    checks: dict[str, Callable[[], object]] = {
        "versions": lambda: _versions(folder),
        "experiment": lambda: _experiment(folder),
    }
    if node is None:
        checks["app"] = lambda: _components(folder)
        checks["certificates"] = lambda: _certificates(folder)
        checks["server's key"] = lambda: _server_key(folder)
        checks["connection"] = lambda: _connection(folder)
        for key in _node_keys(folder):
            checks[f"key {key.name}"] = partial(_node_key, key)
        checks["nodes"] = lambda: _nodes(folder)
    else:
        checks["authority"] = lambda: _authority(folder)
        checks[f"key node-{node}"] = lambda: _node_key(folder / "keys" / f"node-{node}")
    checks["data"] = lambda: _data(folder, node or 0, data)
    return [_found(what, check) for what, check in checks.items()]


def _found(what: str, check: Callable[[], object]) -> Finding:
    try:
        note = check()
    except (_Problem, FedstillError) as problem:
        return Finding(what, str(problem))
    except OSError as error:
        return Finding(what, f"{error.filename}: {error.strerror}")
    return Finding(what, note=note if isinstance(note, str) else None)


def _versions(folder: Path) -> None:
    flower = importlib.metadata.version("flwr")
    if tuple(int(part) for part in flower.split(".")[:2]) not in {(1, 41), (1, 42)}:
        raise _Problem(f"flwr {flower} is installed; 1.41 or 1.42 is needed")
    if not (folder / "pyproject.toml").exists():
        raise _Problem("pyproject.toml is missing")
    needed = read_toml(folder / "pyproject.toml").get("project", {}).get("dependencies", [])
    if f"fedstill=={VERSION}" not in needed:
        raise _Problem(
            f"the app needs {', '.join(needed) or 'nothing'}; fedstill {VERSION} is installed"
        )
    if (other := _description(folder).version) != VERSION:
        raise _Problem(f"task.json was written by fedstill {other}; {VERSION} is installed")


def _description(folder: Path) -> Description:
    return read_description((folder / "task.json").read_text())


def _experiment(folder: Path) -> Experiment:
    experiment = resolve(read_toml(folder / "experiment.toml"))
    description = _description(folder)
    build_model(experiment.model, description.shape, len(description.class_names))
    if experiment.engine.name != "flower":
        raise _Problem("engine.name is not 'flower'")
    if experiment.engine.round_timeout is None:
        raise _Problem("engine.round_timeout is not set: a node that hangs would block the run")
    if experiment.clients not in (None, description.clients):
        raise _Problem(f"clients = {experiment.clients}, but the app is for {description.clients}")
    return experiment


def _components(folder: Path) -> None:
    app = read_toml(folder / "pyproject.toml").get("tool", {}).get("flwr", {}).get("app", {})
    for name in ("serverapp", "clientapp"):
        module, _, attribute = str(app.get("components", {}).get(name, "")).partition(":")
        file = folder / f"{module.replace('.', '/')}.py"
        if not attribute or not file.is_file():
            raise _Problem(f"[tool.flwr.app.components] {name}: {file} does not exist")


def _certificate(path: Path) -> Any:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise _Problem(f"{path}: not a PEM certificate") from error


def _authority(folder: Path) -> Any:
    certificate = _certificate(folder / "certificates" / "ca.crt")
    _refuse_expired(certificate, "ca.crt")
    return certificate


def _refuse_expired(certificate: Any, name: str) -> None:
    now, end = datetime.now(UTC), certificate.not_valid_after_utc
    if now < certificate.not_valid_before_utc:
        raise _Problem(f"{name} is valid from {certificate.not_valid_before_utc:%Y-%m-%d} only")
    if end < now + _SOON:
        verb = "expired on" if end < now else "expires on"
        raise _Problem(f"{name} {verb} {end:%Y-%m-%d}; make new certificates")


def _certificates(folder: Path) -> None:
    from cryptography.exceptions import InvalidSignature

    authority = _authority(folder)
    server = _certificate(folder / "certificates" / "server.crt")
    _refuse_expired(server, "server.crt")
    try:
        server.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError) as error:
        raise _Problem("server.crt was not issued by ca.crt") from error
    host = _address(folder).host
    if host not in (names := list(_names(server))):
        raise _Problem(f"server.crt is for {', '.join(names)}, but nodes connect to {host}")


def _names(certificate: Any) -> Iterator[str]:
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return
    yield from names.get_values_for_type(x509.DNSName)
    yield from (str(ip) for ip in names.get_values_for_type(x509.IPAddress))


def _server_key(folder: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    path = folder / "certificates" / "server.key"
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise _Problem(f"{path}: not an unencrypted PEM key") from error
    if key.public_key() != _certificate(folder / "certificates" / "server.crt").public_key():
        raise _Problem("server.key does not belong to server.crt")
    _refuse_readable(path)


def _refuse_readable(path: Path) -> None:
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise _Problem(f"{path} can be read by others; chmod 600 {path}")


def _address(folder: Path) -> Address:
    link = read_toml(folder / "flower" / "config.toml").get("superlink", {}).get(LINK, {})
    return Address.parse(str(link.get("address", "")))


def _connection(folder: Path) -> None:
    config = folder / "flower" / "config.toml"
    link = read_toml(config).get("superlink", {}).get(LINK, {})
    if link.get("insecure"):
        raise _Problem(f"{config}: insecure = true: nothing would be encrypted")
    if not Path(str(link.get("root-certificates", ""))).is_file():
        raise _Problem(f"{config}: root-certificates names no file; was the folder moved?")


def _node_keys(folder: Path) -> list[Path]:
    """The keys of all nodes, and any others that are there."""
    expected = {folder / "keys" / f"node-{k}" for k in range(_description(folder).clients)}
    found = {path.with_suffix("") for path in (folder / "keys").glob("*.pub")}
    return sorted(expected | found, key=lambda path: (len(path.name), path.name))


def _node_key(path: Path) -> None:
    """Check a key pair; the server may have the public key only."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    public_file = public_path(path)
    public = None
    try:
        if public_file.is_file():
            public = serialization.load_ssh_public_key(public_file.read_bytes())
        private = (
            serialization.load_ssh_private_key(path.read_bytes(), None) if path.is_file() else None
        )
    except (ValueError, TypeError) as error:
        raise _Problem(f"{path}: not an unencrypted OpenSSH key; `fedstill deploy key`") from error
    if public is None and private is None:
        raise _Problem(f"{path} is missing; `fedstill deploy key {path}` makes it")
    if not isinstance(private or public, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey):
        raise _Problem(f"{path}: Flower needs a NIST curve; `fedstill deploy key` makes one")
    if private is not None:
        if public is not None and private.public_key() != public:
            raise _Problem(f"{public_file.name} does not belong to {path.name}")
        _refuse_readable(path)


def _nodes(folder: Path) -> str | None:
    """Check that every client is bound to the key that is here."""
    bound = read_nodes(folder)
    if not bound:
        return (
            "no key is bound to its client: when the SuperLink runs, "
            f"`fedstill deploy register {folder}`"
        )
    for client in range(_description(folder).clients):
        key = public_path(folder / "keys" / f"node-{client}")
        if client not in bound or (key.is_file() and fingerprint(key) != bound[client].key):
            raise _Problem(
                f"client {client} is not bound to {key}; `fedstill deploy register {folder}`"
            )
    return None


def _data(folder: Path, node: int, data: Path | None) -> None:
    """Build the node as its first message would: data that do not fit are found now."""
    experiment = _experiment(folder)
    if experiment.partition == "nodes" and data is None:
        return  # the server has no records of the nodes to check
    code = (experiment.method["name"], experiment.model["name"])
    config: dict[str, Any] = {"partition-id": node, "allow": ",".join(code)}
    if data is not None:
        config["data"] = str(data)
        # The node's own names of columns are in its configuration, which is not here: the server's.
        for key in ("label_column", "image_column", "split_column"):
            if (name := getattr(experiment.data, key)) is not None:
                config[key.replace("_", "-")] = name
    if experiment.data.dir:
        config["data-dir"] = experiment.data.dir
    # task.json has the data's shape; experiment.toml may have been edited since.
    description = dataclasses.replace(_description(folder), config=experiment.table)
    with tempfile.TemporaryDirectory() as scratch:  # the node's own folder stays as it is
        built = node_for(description.text, {**config, "folder": scratch}).opened
    if not len(built.client_records.of(node, built.task)):
        raise _Problem(f"client {node} has no records")
