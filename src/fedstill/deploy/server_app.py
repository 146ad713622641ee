"""The ServerApp of a deployment: one for every method. It runs the rounds.

Its run configuration has two settings: ``out``, the run folder on the server's machine, and
``resume``, to resume the run that is there.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedstill.config.nested import read_toml
from fedstill.deploy.nodes import NODES, node_ids, read_nodes
from fedstill.deploy.outcome import marked_failure
from fedstill.draw.console import Console
from fedstill.engine.flower.description import describe
from fedstill.engine.flower.grid import GridEngine
from fedstill.execute import execute
from fedstill.federation import Federation
from fedstill.observe.progress import PlainProgress
from fedstill.result import Result


def server_app(experiment: Path) -> ServerApp:
    """The app that runs the experiment in this TOML file, with the nodes in the one beside it."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        with marked_failure():
            serve(grid, experiment, context.run_config)

    return app


def serve(grid: Grid, experiment: Path, config: Mapping[str, Any]) -> Result:
    """One run, or the rest of one, on the nodes of this grid."""

    # Flower forwards plain lines to those who follow the run; progress bars would be garbled.
    observer = PlainProgress(Console(width=200, soft_wrap=True, force_terminal=False))
    bound = node_ids(read_nodes(experiment.parent))
    if not bound:
        observer.note(
            f"{NODES} is empty: every node is the client that it says it is; where nodes have "
            "keys, `fedstill deploy register` binds them"
        )

    def engine(federation: Federation) -> GridEngine:
        built = federation.built
        return GridEngine(grid, built.experiment, describe(built).text, bound)

    return execute(
        read_toml(experiment),
        out=str(config.get("out") or "run"),
        resume=bool(config.get("resume", False)),
        observer=observer,
        engine=engine,
    )
