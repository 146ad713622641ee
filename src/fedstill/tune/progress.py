"""What a search looks like while it runs: a bar on a terminal, plain lines elsewhere."""

import time

from rich.progress import BarColumn, Progress, TextColumn

from fedstill.draw.console import Console
from fedstill.draw.numbers import in_percent, in_time
from fedstill.observe.progress import is_live
from fedstill.tune.search import FinishedTrial, Watcher
from fedstill.tune.space import Candidate


class TrialLines(Watcher):
    """One line per trial: for files, pipes and logs."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.begun = time.monotonic()
        self.received = 0

    def finished(self, trial: FinishedTrial) -> None:
        self.received += 1
        pace = (time.monotonic() - self.begun) / self.received
        parts = [
            f"trial {trial.number} ({trial.finished}/{trial.trials})",
            f"accuracy {in_percent(trial.value)}" if trial.state == "done" else trial.state,
            f"best {in_percent(trial.best)}",
            describe_candidate(trial.candidate),
            f"{trial.seconds:.1f} s",
            f"left {in_time(pace * max(0, trial.trials - trial.finished))}",
        ]
        if trial.note:
            parts.append(trial.note)
        self.console.print("  ".join(parts), markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        """Leave the terminal as it was."""


class TrialBar(TrialLines):
    """A bar below the lines: the study, and the epoch that a trial has reached."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.bar = Progress(
            TextColumn("trials"),
            BarColumn(bar_width=28),
            TextColumn("{task.fields[detail]}"),
            console=console,
            transient=True,
        )
        self.task = self.bar.add_task("trials", total=None, detail="starting")
        self.bar.start()

    def epoch(self, number: int, epoch: int, epochs: int, accuracy: float) -> None:
        detail = f"trial {number}, epoch {epoch}/{epochs}, accuracy {in_percent(accuracy)}"
        self.bar.update(self.task, detail=detail)

    def finished(self, trial: FinishedTrial) -> None:
        super().finished(trial)
        self.bar.update(self.task, total=trial.trials, completed=trial.finished)

    def stop(self) -> None:
        self.bar.stop()


def watcher_for(console: Console) -> TrialLines:
    """A bar where it can be drawn, plain lines elsewhere."""
    return TrialBar(console) if is_live(console) else TrialLines(console)


def describe_candidate(candidate: Candidate) -> str:
    """A candidate on one line."""
    network = " ".join(str(value) for value in candidate.model.values())
    training = candidate.training
    return (
        f"{network}; rate {training.learning_rate:.3g} momentum {training.momentum:g} "
        f"batch {training.batch_size} epochs {training.epochs} {training.schedule}"
        + (f" {training.augment}" if training.augment != "none" else "")
        + (f" {training.optimiser}" if training.optimiser != "sgd" else "")
        + (f" local epochs {candidate.federated.local_epochs}" if candidate.federated else "")
    )
