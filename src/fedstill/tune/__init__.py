"""``fedstill.tune``: hyper-parameters and architecture on a distilled set.

Distil once, then search at the server as often as needed: nothing is sent while candidates are
judged on held-out synthetic images. The winner is a configuration for one federated run.
"""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstill.config import resolve_model
from fedstill.config.nested import Table, as_table, read_toml
from fedstill.errors import Interrupted, RequestError, RunError, did_you_mean
from fedstill.evaluate.evaluation import model_tables
from fedstill.observe.progress import ProgressConsole
from fedstill.rng import Rng
from fedstill.runs.find import run_of
from fedstill.runs.folder import RunFolder
from fedstill.runs.place import set_file
from fedstill.runs.sets import StoredSet, load_set
from fedstill.tune.objective import Judge, held_out_rows
from fedstill.tune.page import short, write_page
from fedstill.tune.progress import watcher_for
from fedstill.tune.rehearsal import owners_of
from fedstill.tune.search import InProcess, InWorker, Judges, SearchLoop, Watcher
from fedstill.tune.space import (
    Choice,
    Space,
    as_plain,
    check,
    default_space,
    narrowed,
    open_settings,
    rehearsed,
    suggest,
    with_changes,
)
from fedstill.tune.study import load_optuna, open_study, pruner_for, sampler_for, set_digest
from fedstill.tune.vote import Voters, refuse_overspending, voters_of
from fedstill.tune.winner import Judged, best_of, winner_table, write_winner

if TYPE_CHECKING:
    from optuna import Study

OBJECTIVES = ("holdout", "vote")
_STUDY = "study.journal"


@dataclass(frozen=True)
class Tuned:
    """The result of a search."""

    folder: Path
    study: Path
    winner: Judged
    judged: tuple[Judged, ...]  # all complete trials
    config: Table  # the contents of winner.toml
    trials: dict[str, int]  # how many are complete, pruned, failed
    up_bytes: int  # of all votes
    down_bytes: int
    epsilon: float | None = None  # of the run and all votes together, where privacy is on

    @property
    def summary(self) -> Table:
        """All of it as plain values: what ``--json`` prints."""
        return {
            "folder": str(self.folder),
            "study": str(self.study),
            "config": self.config,
            "trials": self.trials,
            "up_bytes": self.up_bytes,
            "down_bytes": self.down_bytes,
            "epsilon": self.epsilon,
            "best_trial": self.winner.trial,
            "best_value": self.winner.value,
            "held_out": self.winner.held_out,
            "model": self.winner.candidate.model,
            "training": as_table(self.winner.candidate.training),
        }


def tune(
    source: str | os.PathLike[str],
    *,
    trials: int = 50,
    search: str = "both",
    objective: str = "holdout",
    sampler: str = "tpe",
    pruner: str = "median",
    workers: int = 1,
    study: str | Path | None = None,
    out: str | Path | None = None,
    model: str | None = None,
    space: str | Path | Mapping[str, Any] | None = None,
    holdout: float = 0.25,
    repeats: int = 1,
    seed: int = 0,
    federated: bool = False,
    device: str = "cpu",
    watcher: Watcher | None = None,
    progress: bool = True,
) -> Tuned:
    """Search for the best network and training on a synthetic set; options as ``fedstill tune``.

    ``trials`` is the total number of trials in the study: an interrupted study is resumed up to
    it. ``space`` is a TOML file or a table that changes what is searched. ``federated``: a
    candidate is trained by FedAvg among clients that hold parts of the set. ``progress`` shows the
    trials, unless a ``watcher`` gets them.

    >>> fedstill.tune("runs/feddm-digits-001", trials=20).winner.candidate
    """
    load_optuna()
    _check_numbers(trials, workers, holdout, repeats)
    if objective not in OBJECTIVES:
        raise RequestError(
            f"--objective: no objective '{objective}'{did_you_mean(objective, OBJECTIVES)}"
        )
    path = Path(source)
    stored, run = load_set(path), run_of(path)
    changes = read_toml(Path(space)) if isinstance(space, str | Path) else dict(space or {})
    owners = owners_of(stored, run) if federated else None
    offered = _space(stored, run, search, model, changes, federated)
    held_out_rows(stored.classes, holdout, Rng(seed))  # refuses a set that is too small
    voters = voters_of(run, path, stored) if objective == "vote" else None
    begun = study or (Path(out) / _STUDY if out else None)
    if voters is not None and not (begun and Path(begun).exists()):
        refuse_overspending(voters, trials * repeats)  # the ledgers stop a resumed one
    judge = Judge(stored, seed, holdout, repeats, device, voters, owners)
    experiment = {
        "set": set_digest(stored),
        "space": as_plain(offered),
        "objective": objective,
        "clients": voters.digest if voters else None,
        "holdout": holdout,
        "repeats": repeats,
        "seed": seed,
    }
    sampler_for(
        sampler, seed, 0, parallel=workers > 1
    )  # refuses a wrong name before any file is written
    prunes = pruner_for(pruner, _most_epochs(offered))
    folder = _folder(out, study, stored)
    file = Path(study) if study is not None else folder / _STUDY
    header: Table = {
        "set": str(set_file(path).absolute()),
        "vote": voters is not None,
        "federated": federated,
        "seed": seed,
        "holdout": holdout,
        "repeats": repeats,
        "device": device,
    }
    judges: list[Judges] = (
        [InProcess(judge)] if workers == 1 else [InWorker(header) for _ in range(workers)]
    )
    shown = watcher_for(ProgressConsole(stderr=True)) if progress and watcher is None else None
    with open_study(file, experiment, prunes) as opened:
        loop = SearchLoop(opened, offered, sampler, seed, trials, watcher or shown or Watcher())
        try:
            loop.run(judges)
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted; resume with the same command and --study {shlex.quote(str(file))}"
            ) from None
        finally:
            if shown is not None:
                shown.stop()
        return _conclude(opened, offered, folder, file, stored, run, voters)


def _check_numbers(trials: int, workers: int, holdout: float, repeats: int) -> None:
    for name, number in (("trials", trials), ("workers", workers), ("repeats", repeats)):
        if number < 1:
            raise RequestError(f"--{name}: at least 1 (it is {number})")
    if not 0 < holdout < 1:
        raise RequestError(f"--holdout: a share between 0 and 1 (it is {holdout})")


def _space(
    stored: StoredSet,
    run: RunFolder | None,
    search: str,
    model: str | None,
    changes: Table,
    federated: bool,
) -> Space:
    (table,) = model_tables([model] if model else None, {}, run)
    network = resolve_model(table)
    space = narrowed(default_space(stored.metadata.shape), search, network)
    space = with_changes(rehearsed(space, search) if federated else space, changes)
    check(space, stored.metadata.shape, len(stored.metadata.class_names))
    if not open_settings(space):
        raise RequestError("--space: nothing is left to search: every setting is fixed")
    return space


def _most_epochs(space: Space) -> int:
    epochs = space["training.epochs"]
    return int(max(epochs.values)) if isinstance(epochs, Choice) else int(epochs.high)


def _folder(out: str | Path | None, study: str | Path | None, stored: StoredSet) -> Path:
    """The folder for the results: the requested one, or the study's, or a new one."""
    if out is not None:
        return Path(out)
    if study is not None:
        return Path(study).parent
    return RunFolder.claim("tune", stored.metadata.data).path


def _conclude(
    study: "Study",
    space: Space,
    folder: Path,
    file: Path,
    stored: StoredSet,
    run: RunFolder | None,
    voters: Voters | None,
) -> Tuned:
    """The winner, its configuration and the page."""
    from optuna.trial import FixedTrial, TrialState

    finished = study.get_trials(deepcopy=False)
    counts = {
        name: sum(t.state == state for t in finished)
        for name, state in (
            ("complete", TrialState.COMPLETE),
            ("pruned", TrialState.PRUNED),
            ("failed", TrialState.FAIL),
        )
    }
    if not counts["complete"]:
        raise RunError(
            f"no trial is complete: {counts['pruned']} pruned, {counts['failed']} failed"
        )
    judged = tuple(
        Judged(
            trial.number,
            float(trial.values[0]),
            trial.user_attrs["held_out"],
            trial.user_attrs["weights"],
            suggest(FixedTrial(trial.params), space),
        )
        for trial in finished
        if trial.state == TrialState.COMPLETE
    )
    winner = best_of(judged)
    candidate = winner.candidate
    tuned = any(name.startswith(("training.", "federated.")) for name in open_settings(space))
    config = winner_table(winner, tuned, run)
    metadata = stored.metadata
    title = f"{metadata.method} on {metadata.data}, round {metadata.round}: {len(stored)} images"
    write_winner(folder / "winner.toml", winner, config, title)
    up, down = (
        sum(trial.user_attrs.get(key, 0) for trial in finished)
        for key in ("up_bytes", "down_bytes")
    )
    settings = candidate.model | as_table(candidate.training)
    text = ", ".join(f"{name} {short(value)}" for name, value in settings.items())
    lines = [
        f"Best: trial {winner.trial}, {winner.value:.2%}: {text}.",
        f"{counts['complete']} trials complete, {counts['pruned']} pruned, "
        f"{counts['failed']} failed; votes cost {up:,} bytes up and {down:,} down.",
    ]
    epsilon = voters.epsilon if voters else None
    if epsilon is not None:
        lines.append(f"Votes were private: the run and all votes have spent epsilon {epsilon:.2f}.")
    write_page(folder / "tune.html", study, f"Search on {title}", lines)
    return Tuned(folder, file, winner, judged, config, counts, up, down, epsilon)
