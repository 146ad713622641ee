"""The same federation across processes and machines, carried by Flower.

`federation.py` remains the only round loop and `client.py` the only client's turn; this package
carries work to nodes and answers back. Our wire bytes are sent inside Flower's records, unchanged.

    records.py      work and answers as Flower records
    grid.py         the engine on a ServerApp's grid: finds nodes, sends work, polls answers
    roster.py       which connected node is which client
    node.py         the node's side: its data, its folder, its client's state
    client_app.py   the ClientApp, one for every method
    description.py  what a node learns about the experiment
    environment.py  the environment of Flower's programs
    simulation.py   `--engine flower`: Flower's simulation runtime as an engine of this process
    relay.py        the ServerApp of a simulation: work from this process to the grid and back
    supervisor.py   ends everything that a simulation started, whatever happens to its parent

The ServerApp of a deployment is `deploy/server_app.py`.
"""

import importlib.util

from fedstill.errors import RequestError

INSTALL = "pip install 'fedstill[flower]'"


def require_flower(*, simulation: bool = False) -> None:
    """Refuse the request if Flower is not installed."""
    needed = ["flwr", "ray"] if simulation else ["flwr"]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise RequestError(f"Flower is not installed here ({missing[0]} is missing); {INSTALL}")
