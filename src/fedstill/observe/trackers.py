"""Metrics for experiment trackers, when asked: ``--track tensorboard`` or ``--track mlflow``.

A tracker is one more observer: the run, its folder and its bits are the same with and without.
"""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedstill.config.nested import flat
from fedstill.errors import RequestError, did_you_mean
from fedstill.observe.observer import Observer
from fedstill.runs.folder import RunFolder
from fedstill.runs.forecast import Forecast
from fedstill.runs.metrics import RoundMetrics, Summary


class Observers(Observer):
    """Watchers and trackers, called in order.

    A tracker that fails (its server is gone, its disk is full) is dropped: the run continues. An
    error of a watcher ends the run.
    """

    def __init__(self, watchers: Sequence[Observer], trackers: Sequence[Observer] = ()) -> None:
        self.watchers, self.trackers = tuple(watchers), list(trackers)

    def started(self, folder: Path, summary: Summary, rounds: int, done: int) -> None:
        self._forward(lambda each: each.started(folder, summary, rounds, done))

    def forecast(self, forecast: Forecast) -> None:
        self._forward(lambda each: each.forecast(forecast))

    def note(self, text: str) -> None:
        self._forward(lambda each: each.note(text))

    def round_started(self, round: int, clients: list[int]) -> None:
        self._forward(lambda each: each.round_started(round, clients))

    def client_progress(self, client: int, step: int, steps: int) -> None:
        self._forward(lambda each: each.client_progress(client, step, steps))

    def client_done(self, client: int, error: str | None) -> None:
        self._forward(lambda each: each.client_done(client, error))

    def server_progress(self, step: int, steps: int) -> None:
        self._forward(lambda each: each.server_progress(step, steps))

    def round_done(self, metrics: RoundMetrics) -> None:
        self._forward(lambda each: each.round_done(metrics))

    def finished(self, folder: Path, summary: Summary) -> None:
        self._forward(lambda each: each.finished(folder, summary))

    def stop(self) -> None:
        self._forward(lambda each: each.stop())

    def _forward(self, call: Callable[[Observer], None]) -> None:
        for watcher in self.watchers:
            call(watcher)
        for each in tuple(self.trackers):
            try:
                call(each)
            except Exception as error:
                self.trackers.remove(each)
                name = type(each).__name__
                for watcher in self.watchers:
                    watcher.note(f"{name} failed and gets no more metrics: {error}")


class TensorBoardTracker(Observer):
    """Writes event files to ``RUN/tensorboard``."""

    def __init__(self) -> None:
        _needed("tensorboard")
        self.make = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self.writer: Any = None

    def started(self, folder: Path, summary: Summary, rounds: int, done: int) -> None:
        # After a restart, later rounds of the earlier session are computed again.
        self.writer = self.make(str(folder / "tensorboard"), purge_step=done + 1)
        settings = flat(RunFolder(folder).read_config())
        text = "\n".join(f"    {key} = {value!r}" for key, value in settings.items())
        self.writer.add_text("configuration", text, done)

    def round_done(self, metrics: RoundMetrics) -> None:
        for name, value in numbers(metrics).items():
            self.writer.add_scalar(name, value, metrics.round)
        self.writer.flush()

    def finished(self, folder: Path, summary: Summary) -> None:
        self.writer.close()


class MlflowTracker(Observer):
    """Logs to the tracking server or folder that MLflow is set up for (MLFLOW_TRACKING_URI)."""

    def __init__(self) -> None:
        self.mlflow: Any = _needed("mlflow")

    def started(self, folder: Path, summary: Summary, rounds: int, done: int) -> None:
        self.mlflow.set_experiment(f"fedstill {summary.data}")
        self.mlflow.start_run(run_name=folder.name)
        settings = flat(RunFolder(folder).read_config())
        self.mlflow.log_params({key: str(value)[:500] for key, value in settings.items()})

    def round_done(self, metrics: RoundMetrics) -> None:
        self.mlflow.log_metrics(numbers(metrics), step=metrics.round)

    def finished(self, folder: Path, summary: Summary) -> None:
        self.mlflow.end_run()


TRACKERS: dict[str, Callable[[], Observer]] = {
    "mlflow": MlflowTracker,
    "tensorboard": TensorBoardTracker,
}


def tracker(name: str) -> Observer:
    """The tracker of this name, if what it needs is installed."""
    if name not in TRACKERS:
        raise RequestError(f"--track {name}: no such tracker{did_you_mean(name, TRACKERS)}")
    return TRACKERS[name]()


def numbers(metrics: RoundMetrics) -> dict[str, float]:
    """A round's numbers by name, without those that were not measured."""
    named = {
        "accuracy": metrics.accuracy,
        "loss": metrics.loss,
        "up_bytes": metrics.up_bytes,
        "down_bytes": metrics.down_bytes,
        "seconds": metrics.seconds,
        "epsilon": metrics.epsilon,
        "clients": len(metrics.clients),
        "failed": len(metrics.failed),
        **{f"details/{name}": value for name, value in metrics.details.items()},
    }
    return {name: float(value) for name, value in named.items() if value is not None}


def _needed(package: str) -> Any:
    """The package, which is also the name of the extra that installs it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise RequestError(
            f"--track {package}: it is not installed; pip install 'fedstill[{package}]'"
        ) from error
