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
from fedstill.draw.console import Console
from fedstill.engine.flower.description import describe
from fedstill.engine.flower.grid import GridEngine
from fedstill.federation import Federation
from fedstill.observe.progress import PlainProgress
from fedstill.run import Result, execute


def server_app(experiment: Path) -> ServerApp:
    """The app that runs the experiment in this TOML file."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, experiment, context.run_config)

    return app


def serve(grid: Grid, experiment: Path, config: Mapping[str, Any]) -> Result:
    """One run, or the rest of one, on the nodes of this grid."""

    def engine(federation: Federation) -> GridEngine:
        built = federation.built
        return GridEngine(grid, built.experiment, describe(built).text)

    # Flower forwards plain lines to those who follow the run; progress bars would be garbled.
    console = Console(width=200, soft_wrap=True, force_terminal=False)
    return execute(
        read_toml(experiment),
        out=str(config.get("out") or "run"),
        resume=bool(config.get("resume", False)),
        observer=PlainProgress(console),
        engine=engine,
    )
