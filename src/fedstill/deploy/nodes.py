"""``nodes.toml``: which node's key is which client.

Flower gives every registered key a node id, and a node cannot choose another one. The file is part
of the app, so that the ServerApp accepts a client from its own node only. Nothing in it is secret.
"""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import tomli_w

from fedstill.config.nested import read_toml
from fedstill.errors import RequestError
from fedstill.files import write_atomically

NODES = "nodes.toml"
_HEAD = "# Which node is which client; `fedstill deploy register` writes it.\n"


@dataclass(frozen=True)
class BoundNode:
    """The node of a client. The id is text, because it is larger than TOML's integers."""

    node: str
    key: str  # fingerprint of the public key, as `ssh-keygen -l` prints it


def read_nodes(app: Path) -> dict[int, BoundNode]:
    """The nodes of the app's clients; empty if no key has been registered."""
    path = app / NODES
    if not path.is_file():
        return {}  # made by an earlier version
    nodes: dict[int, BoundNode] = {}
    try:
        for client, entry in read_toml(path).get("clients", {}).items():
            nodes[int(client)] = BoundNode(str(int(entry["node"])), str(entry["key"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RequestError(
            f"{path}: not as `fedstill deploy register` writes it; run it again"
        ) from error
    return nodes


def write_nodes(app: Path, nodes: Mapping[int, BoundNode]) -> None:
    """Replace the file."""
    clients = {str(client): asdict(node) for client, node in sorted(nodes.items())}
    text = _HEAD + (tomli_w.dumps({"clients": clients}) if clients else "")
    write_atomically(app / NODES, text.encode())


def node_ids(nodes: Mapping[int, BoundNode]) -> dict[int, int]:
    """Client -> Flower's id of its node."""
    return {client: int(bound.node) for client, bound in nodes.items()}


def fingerprint(public_key: Path) -> str:
    """The fingerprint of an OpenSSH public key."""
    try:
        blob = base64.b64decode(public_key.read_text().split()[1], validate=True)
    except (IndexError, ValueError) as error:
        raise RequestError(f"{public_key}: not an OpenSSH public key") from error
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode()
    return f"SHA256:{digest.rstrip('=')}"
