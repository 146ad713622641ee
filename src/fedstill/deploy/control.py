"""The SuperLink's control API: its nodes, and how a run goes and ends.

The programs of Flower do not say which key a node has, nor by their exit code how a run ended: the
API behind them does. Everything that fedstill asks of it is here.
"""

import contextlib
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import httpx

from fedstill.deploy.link import LINK, flower_home
from fedstill.engine.flower.environment import QUIET
from fedstill.errors import RunError

UNREGISTERED = "unregistered"


class Unreachable(RunError):
    """The SuperLink does not answer."""


@dataclass(frozen=True)
class Node:
    """A node that the SuperLink knows."""

    id: int
    key: bytes  # its public key as Flower keeps it
    status: str  # registered, online, offline, unregistered


@dataclass(frozen=True)
class Status:
    """Where a run stands, in Flower's words."""

    finished: bool
    outcome: str  # completed, failed, stopped
    details: str


class Control:
    """The control API of one SuperLink."""

    def __init__(self, client: Any, address: str) -> None:
        self._client = client
        self._address = address

    def nodes(self) -> list[Node]:
        """All nodes, those that were unregistered too."""
        from flwr.proto.control_pb2 import ListNodesRequest

        with _explained(self._address):
            reply = self._client.ListNodes(ListNodesRequest())
        return [Node(node.node_id, node.public_key, node.status) for node in reply.nodes_info]

    def register(self, key: bytes, name: str) -> int:
        """Admit the node with this key; its id."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        with _explained(self._address):
            reply = self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))
        return int(reply.node_id)

    def unregister(self, node: int) -> None:
        """Admit the node no longer."""
        from flwr.proto.control_pb2 import UnregisterNodeRequest

        with _explained(self._address):
            self._client.UnregisterNode(UnregisterNodeRequest(node_id=node))

    def log(self, run: int, after: float) -> Iterator[tuple[str, float]]:
        """The run's log after that time, as it is written; ends with the run."""
        from flwr.proto.control_pb2 import StreamLogsRequest

        request = StreamLogsRequest(run_id=run, after_timestamp=after)
        with _explained(self._address):
            for reply in self._client.StreamLogs(request):
                yield reply.log_output, reply.latest_timestamp

    def status(self, run: int) -> Status:
        """Where the run stands."""
        from flwr.proto.control_pb2 import ListRunsRequest

        with _explained(self._address):
            reply = self._client.ListRuns(ListRunsRequest(run_id=run))
        status = reply.run_dict[run].status
        return Status(status.status == "finished", status.sub_status, status.details)


@contextlib.contextmanager
def control(app: Path) -> Iterator[Control]:
    """The SuperLink that the app's Flower configuration names."""
    with _environment({**QUIET, "FLWR_HOME": str(flower_home(app))}):
        from flwr.cli.flower_config import read_superlink_connection
        from flwr.cli.utils import init_http_client_from_connection

        try:
            with contextlib.redirect_stdout(io.StringIO()):  # it says which SuperLink it uses
                connection = read_superlink_connection(LINK)
                client = init_http_client_from_connection(connection)
        except click.ClickException as error:
            raise RunError(f"{flower_home(app) / 'config.toml'}: {error.message}") from error
        try:
            yield Control(client, str(connection.address))
        finally:
            client.close()


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


@contextlib.contextmanager
def _explained(address: str) -> Iterator[None]:
    from flwr.supercore.error import FlowerError

    try:
        yield
    except httpx.HTTPStatusError as error:
        with contextlib.suppress(httpx.HTTPError):
            error.response.read()
        known = FlowerError.from_json(error.response.text)
        reason = known.message if known else f"HTTP status {error.response.status_code}"
        raise RunError(f"the SuperLink at {address} refuses: {reason}") from error
    except httpx.HTTPError as error:
        raise Unreachable(
            f"the SuperLink at {address} does not answer ({error}); is it running, and is its "
            "address in flower/config.toml?"
        ) from error
