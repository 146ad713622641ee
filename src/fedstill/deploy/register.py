"""``fedstill deploy register``: the nodes' keys at the SuperLink, each bound to its client."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedstill.deploy.control import UNREGISTERED, Control, Node, control
from fedstill.deploy.nodes import BoundNode, fingerprint, read_nodes, write_nodes
from fedstill.engine.flower import require_flower
from fedstill.engine.flower.description import read_description
from fedstill.errors import RequestError


@dataclass(frozen=True)
class Registration:
    """What was done for one client."""

    client: int
    node: int
    new: bool
    replaced: int | None = None  # the client's node before, which is admitted no longer


def register_nodes(app: Path, clients: Iterable[int] | None = None) -> list[Registration]:
    """Register the keys of these clients, or of all, and write which node is which client.

    A key that is registered already keeps its node, so this can be repeated at any time.
    """
    require_flower()
    chosen = list(range(clients_of(app)) if clients is None else clients)
    keys = {client: public_key_of(app, client) for client in chosen}
    pems = {client: _pem(path) for client, path in keys.items()}
    bound = read_nodes(app)
    _refuse_shared(bound | {c: BoundNode("0", fingerprint(path)) for c, path in keys.items()})
    with control(app) as superlink:
        known = {node.key: node for node in superlink.nodes()}
        done: list[Registration] = []
        for client in chosen:
            registration = _register(superlink, client, pems[client], known, bound.get(client))
            bound[client] = BoundNode(str(registration.node), fingerprint(keys[client]))
            write_nodes(app, bound)  # at once: what is registered is on record, whatever comes
            done.append(registration)
    return done


def _register(
    superlink: Control, client: int, key: bytes, known: Mapping[bytes, Node], old: BoundNode | None
) -> Registration:
    node = known.get(key)
    if node is not None and node.status == UNREGISTERED:
        raise RequestError(
            f"keys/node-{client}.pub was unregistered, and Flower does not take a key twice: "
            "make another one with `fedstill deploy key`"
        )
    number = node.id if node else superlink.register(key, f"node-{client}")
    replaced = None
    if old is not None and int(old.node) != number:
        replaced = int(old.node)
        if any(n.id == replaced and n.status != UNREGISTERED for n in known.values()):
            superlink.unregister(replaced)
    return Registration(client, number, node is None, replaced)


def refuse_unbound(app: Path, nodes: Iterable[Node]) -> None:
    """Refuse to run if keys are registered that are bound to no client, or to another node."""
    bound = read_nodes(app)
    known = {node.key: node.id for node in nodes if node.status != UNREGISTERED}
    for client, path in public_keys(app):
        node = known.get(_pem(path))
        if node is None and client not in bound:
            continue  # a trial without keys, or a node that is still to come
        if client not in bound or str(node) != bound[client].node:
            raise RequestError(
                f"{path} is not bound to client {client}, so another node could say that it is "
                f"this client; `fedstill deploy register {app}` binds it"
            )


def clients_of(app: Path) -> int:
    """The number of the app's clients."""
    path = app / "task.json"
    if not path.is_file():
        raise RequestError(f"{app}: no task.json; `fedstill deploy init` makes an app")
    return read_description(path.read_text()).clients


def public_keys(app: Path) -> Iterator[tuple[int, Path]]:
    """The clients' public keys, as far as they are there."""
    for client in range(clients_of(app)):
        path = app / "keys" / f"node-{client}.pub"
        if path.is_file():
            yield client, path


def public_key_of(app: Path, client: int) -> Path:
    """The client's public key."""
    clients = clients_of(app)
    if not 0 <= client < clients:
        raise RequestError(f"--node {client}: the app has clients 0 to {clients - 1}")
    path = app / "keys" / f"node-{client}.pub"
    if not path.is_file():
        raise RequestError(f"{path} is missing; copy it from the node")
    return path


def _refuse_shared(nodes: Mapping[int, BoundNode]) -> None:
    owners: dict[str, int] = {}
    for client, node in sorted(nodes.items()):
        if (other := owners.setdefault(node.key, client)) != client:
            raise RequestError(f"clients {other} and {client} have the same key; make each its own")


def _pem(path: Path) -> bytes:
    """The public key as Flower keeps it."""
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except ValueError as error:
        raise RequestError(f"{path}: not an OpenSSH public key") from error
    encoded: bytes = key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return encoded
