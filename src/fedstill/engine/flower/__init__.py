"""The same federation across processes and machines, carried by Flower.

`federation.py` stays the one round loop and `engine/client.py` the one client's turn; what is here
takes work to nodes and answers back. Our wire bytes travel inside Flower's records, untouched.

    records.py      work and answers as Flower records
    grid.py         the engine on a ServerApp's grid: nodes found, work sent, answers polled
    node.py         the node's side: its data, its folder, its client's state
    client_app.py   the ClientApp, one for every method
    server_app.py   the ServerApp of a deployment, one for every method
    simulation.py   `--engine flower`: Flower's simulation runtime as an engine of this process
    relay.py        the ServerApp of a simulation: work from this process to the grid and back
    supervisor.py   ends everything that a simulation started, whatever happens to its parent
"""

import importlib.util

from fedstill.errors import RequestError

INSTALL = "pip install 'fedstill[flower]'"


def require_flower(*, simulation: bool = False) -> None:
    """Refuse in one line where Flower is not installed."""
    wanted = ["flwr", "ray"] if simulation else ["flwr"]
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise RequestError(f"Flower is not installed here ({missing[0]} is missing); {INSTALL}")
