"""Which connected node is which client.

A node says which client it is. With node keys that is not left to the node: Flower gives every
registered key a node id of its own, and a client that is bound to a node id is accepted from that
node alone. Without keys (simulations, trials) any process could connect: there the node that was
first keeps its client for as long as it is connected, and another may take over when it is gone.
"""

import warnings
from collections.abc import Collection, Mapping

from fedstill.errors import WireError


class Roster:
    """Clients and their nodes. ``bound`` is client -> node id; empty: no client is bound."""

    def __init__(self, bound: Mapping[int, int]) -> None:
        self._bound = dict(bound)
        self._clients = {node: client for client, node in self._bound.items()}
        self._claims: dict[int, int] = {}  # node -> client that it may be, the first one first
        self._holders: dict[int, int] = {}  # client -> the first node that may be it
        self._rejected: dict[int, str] = {}  # node -> reason
        self._warned: set[tuple[int, int]] = set()

    def introduce(self, node: int, client: int) -> None:
        """The node says that it is this client. A ``WireError`` says why it cannot be."""
        self._rejected.pop(node, None)
        self._claims.pop(node, None)
        if self._bound:
            self._check_bound(node, client)
        self._claims[node] = client
        self._settle()
        if (holder := self._holders[client]) != node:
            self._warn(node, client, _taken(client, holder))

    def reject(self, node: int, reason: str) -> None:
        """The node cannot take part."""
        self._claims.pop(node, None)
        self._rejected[node] = reason
        self._settle()

    def keep(self, present: Collection[int]) -> None:
        """Forget all nodes but these: whoever comes back is asked again."""
        self._claims = {node: c for node, c in self._claims.items() if node in present}
        self._rejected = {node: r for node, r in self._rejected.items() if node in present}
        self._settle()

    def node_of(self, client: int) -> int | None:
        """The node that is this client."""
        return self._holders.get(client)

    def reasons(self) -> list[str]:
        """Why nodes that are connected take no part."""
        found = dict(self._rejected)
        for node, client in self._claims.items():
            if (holder := self._holders[client]) != node:
                found[node] = _taken(client, holder)
        return [f"node {node} was rejected: {reason}" for node, reason in sorted(found.items())]

    def _settle(self) -> None:
        self._holders = {}
        for node, client in self._claims.items():
            self._holders.setdefault(client, node)

    def _check_bound(self, node: int, client: int) -> None:
        """Refuse the node if its key is not that of the client."""
        if self._bound.get(client) == node:
            return
        if node in self._clients:
            own = self._clients[node]
            reason = (
                f"it says it is client {client}, but its key is that of client {own}: "
                f"set its partition-id to {own}"
            )
        else:
            reason = (
                f"it says it is client {client}, but its key is that of no client: "
                "`fedstill deploy register` binds keys to clients"
            )
        self._warn(node, client, reason)
        raise WireError(reason)

    def _warn(self, node: int, client: int, reason: str) -> None:
        if (node, client) not in self._warned:
            self._warned.add((node, client))
            warnings.warn(f"node {node} was rejected: {reason}", stacklevel=2)


def _taken(client: int, holder: int) -> str:
    return (
        f"client {client} is node {holder} for as long as that is connected; if both are running, "
        "give each its own partition-id"
    )
