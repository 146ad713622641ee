"""The ServerApp of a simulation: takes work from the process that runs the federation.

That process runs the rounds, as with every engine, and listens on a socket in its folder. The relay
passes frames between the socket and the grid until the socket is closed.
"""

import dataclasses
import math
import os
import socket
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedstill.config import Experiment, resolve
from fedstill.engine.base import decode_work, encode_answer
from fedstill.engine.flower.description import Description, read_description
from fedstill.engine.flower.grid import GridEngine
from fedstill.engine.flower.node import RELAY_SOCKET, SIMULATION
from fedstill.engine.processes import read_frame, write_frame

app = ServerApp()


def _without_join_timeout(description: Description) -> Experiment:
    """The experiment; simulated nodes always join, however long they take."""
    experiment = resolve(description.config)
    engine = dataclasses.replace(experiment.engine, join_timeout=math.inf)
    return dataclasses.replace(experiment, engine=engine)


@app.main()
def relay(grid: Grid, context: Context) -> None:
    """Serve until the other side closes the socket."""
    folder = Path(os.environ[SIMULATION])
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(folder / RELAY_SOCKET))
        stream: Any = line.makefile("rwb")
        engines: dict[str, GridEngine] = {}
        while True:
            try:
                header, parts = read_frame(stream)
            except EOFError:
                return
            text = header["experiment"]
            if text not in engines:
                experiment = _without_join_timeout(read_description(text))
                engines[text] = GridEngine(grid, experiment, text)
            works = [decode_work([parts[i] for i in places]) for places in header["works"]]
            for answer in engines[text].exchange(works, lambda _client, _step, _steps: None):
                write_frame(stream, {}, encode_answer(answer))
            write_frame(stream, {"done": True})
