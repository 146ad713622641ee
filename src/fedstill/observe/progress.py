"""What a run looks like while it runs: live on a terminal, plain lines elsewhere."""

import importlib.util
import time
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn

from fedstill.draw.console import Console
from fedstill.draw.numbers import counted, in_bytes, in_percent, in_time
from fedstill.errors import one_line
from fedstill.observe.observer import Observer
from fedstill.runs.forecast import Forecast
from fedstill.runs.metrics import RoundMetrics, Summary


class ProgressConsole(Console):
    """A console that falls silent when nobody reads it any more: the run itself continues."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


def title(summary: Summary) -> str:
    """The run in one line."""
    whose = f"natural: {summary.owners}" if summary.owners else summary.partition
    clients = counted(summary.clients, "client")
    return (
        f"{summary.method} on {summary.data}: {clients}, {whose}, "
        f"{summary.model} ({summary.model_size:,} weights), seed {summary.seed}"
    )


def forecast_line(forecast: Forecast) -> str:
    """The costs of a round, known before it, in one line."""
    most = "at most " if forecast.at_most else ""
    return (
        f"per round: {most}{in_bytes(forecast.up_bytes)} up, "
        f"{in_bytes(forecast.down_bytes)} down "
        f"(FedAvg: {in_bytes(forecast.fedavg_up_bytes)} up, "
        f"{in_bytes(forecast.fedavg_down_bytes)} down); "
        f"memory about {in_bytes(forecast.memory_bytes)}"
    )


def round_line(metrics: RoundMetrics, rounds: int, left: float) -> str:
    """A round in one line."""
    parts = [
        f"round {metrics.round}/{rounds}",
        f"accuracy {in_percent(metrics.accuracy)}",
        f"loss {metrics.loss:.4f}" if metrics.loss is not None else "loss -",
        f"up {in_bytes(metrics.up_bytes)}",
        f"down {in_bytes(metrics.down_bytes)}",
    ]
    if metrics.epsilon is not None:
        parts.append(f"epsilon {metrics.epsilon:.2f}")
    if metrics.failed:
        parts.append(f"failed {len(metrics.failed)}")
    parts += [f"{metrics.seconds:.1f} s", f"left {in_time(left)}"]
    return "  ".join(parts)


class PlainProgress(Observer):
    """One line per round: for files, pipes and logs."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.rounds = 0
        self.done = 0
        self.begun = time.monotonic()
        self.finished_rounds = 0

    def started(self, folder: Path, summary: Summary, rounds: int, done: int) -> None:
        self.rounds, self.done = rounds, done
        self.begun = time.monotonic()
        self._say(title(summary))
        if summary.privacy is not None:
            self._say(f"privacy: {summary.privacy}")
        self._say(f"run folder {folder}" + (f", resumed after round {done}" if done else ""))

    def forecast(self, forecast: Forecast) -> None:
        self._say(forecast_line(forecast))
        if forecast.warning:
            self._say(f"warning: {forecast.warning}")

    def note(self, text: str) -> None:
        self._say(f"note: {text}")

    def client_done(self, client: int, error: str | None) -> None:
        if error:
            self._say(f"client {client} failed: {error}")

    def round_done(self, metrics: RoundMetrics) -> None:
        self._say(round_line(metrics, self.rounds, self._left(metrics.round)))

    def stop(self) -> None:
        """Leave the terminal as it was."""

    def _left(self, round: int) -> float:
        self.finished_rounds += 1
        pace = (time.monotonic() - self.begun) / self.finished_rounds
        return pace * (self.rounds - round)

    def _say(self, text: str) -> None:
        self.console.print(one_line(text), markup=False, highlight=False, soft_wrap=True)


class LiveProgress(PlainProgress):
    """Two bars below the lines: the whole run, and the round that is under way."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.bars = Progress(
            TextColumn("{task.description:>7}"),
            BarColumn(bar_width=28),
            TextColumn("{task.fields[detail]}"),
            console=console,
            transient=True,
        )
        self.run = self.bars.add_task("run", total=1.0, detail="")
        self.current = self.bars.add_task("round", total=1.0, detail="starting")
        self.round = 0
        self.shares: dict[int, float] = {}
        self.up = self.down = 0
        self.accuracy: float | None = None

    def started(self, folder: Path, summary: Summary, rounds: int, done: int) -> None:
        super().started(folder, summary, rounds, done)
        self.round, self.accuracy = done, summary.accuracy
        self.up, self.down = summary.up_bytes, summary.down_bytes
        self.bars.start()

    def round_started(self, round: int, clients: list[int]) -> None:
        self.round, self.shares = round, dict.fromkeys(clients, 0.0)
        self._show(f"{counted(len(clients), 'client')} at work")

    def client_progress(self, client: int, step: int, steps: int) -> None:
        self.shares[client] = step / max(1, steps)
        self._show(f"client {client}, step {step}/{steps}")

    def client_done(self, client: int, error: str | None) -> None:
        super().client_done(client, error)
        self.shares[client] = 1.0
        done = sum(share == 1.0 for share in self.shares.values())
        self._show(f"{done} of {len(self.shares)} clients have answered")

    def server_progress(self, step: int, steps: int) -> None:
        self._show(f"server, step {step}/{steps}")

    def round_done(self, metrics: RoundMetrics) -> None:
        super().round_done(metrics)
        self.up, self.down = self.up + metrics.up_bytes, self.down + metrics.down_bytes
        self.accuracy = metrics.accuracy if metrics.accuracy is not None else self.accuracy
        self._show("done")

    def finished(self, folder: Path, summary: Summary) -> None:
        self.stop()

    def stop(self) -> None:
        self.bars.stop()

    def _show(self, detail: str) -> None:
        """Both bars; the time left is extrapolated from the pace so far, within the round too."""
        share = sum(self.shares.values()) / max(1, len(self.shares))
        behind = max(0, self.round - 1) + share
        here = behind - self.done  # rounds of this session: earlier ones took no time now
        parts = [f"{self.round}/{self.rounds}", f"accuracy {in_percent(self.accuracy)}"]
        parts += [f"up {in_bytes(self.up)}", f"down {in_bytes(self.down)}"]
        if here > 0:
            pace = (time.monotonic() - self.begun) / here
            parts.append(f"left {in_time(pace * (self.rounds - behind))}")
        self.bars.update(self.run, completed=behind / max(1, self.rounds), detail="  ".join(parts))
        self.bars.update(self.current, completed=share, detail=detail)


def is_live(console: Console) -> bool:
    """Whether bars can be drawn: on a terminal, and in a notebook that has widgets."""
    if console.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None
    return console.is_terminal


def progress_for(console: Console) -> PlainProgress:
    """Live bars where they can be drawn, plain lines elsewhere."""
    return LiveProgress(console) if is_live(console) else PlainProgress(console)
