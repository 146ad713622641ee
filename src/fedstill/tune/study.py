"""The study on disk: Optuna's journal in one file, which survives a kill and can be resumed.

Only one process uses it at a time. A journal line that a kill truncated is dropped; a trial that
was running starts again with the same number and settings. Every trial's sampler is seeded by the
trial's number: an interrupted study draws what it would have drawn (unless the kill came in the
milliseconds in which a trial's settings are drawn one by one).
"""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from fedstill.config.nested import Table
from fedstill.errors import RequestError, did_you_mean
from fedstill.rng import Rng
from fedstill.runs.sets import StoredSet

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

NAME = "fedstill"
_EXPERIMENT = "experiment"  # attribute: what the study is of
_FIRST_BYTES = b'{"op_code":'  # of Optuna's journals
_INSTALL = "pip install 'fedstill[tune]'"


def load_optuna() -> Any:
    """Optuna with its logging off; refused with the command that installs it if missing."""
    try:
        import optuna
    except ImportError as error:
        raise RequestError(f"fedstill tune needs {error.name}: {_INSTALL}") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _samplers() -> dict[str, Callable[[int, bool], "BaseSampler"]]:
    """By name, from a seed and whether trials run in parallel.

    Not CMA-ES: it keeps its state in the study as a pickle, and nothing is unpickled here.
    """
    from optuna import samplers

    return {
        "tpe": lambda seed, parallel: samplers.TPESampler(seed=seed, constant_liar=parallel),
        "random": lambda seed, _: samplers.RandomSampler(seed=seed),
        "nsgaii": lambda seed, _: samplers.NSGAIISampler(seed=seed, population_size=10),
        "gp": lambda seed, _: samplers.GPSampler(seed=seed),
    }


def _pruners() -> dict[str, Callable[[int], "BasePruner"]]:
    """By name, from the largest number of epochs."""
    from optuna import pruners

    return {
        "median": lambda epochs: pruners.MedianPruner(
            n_startup_trials=5, n_warmup_steps=max(1, epochs // 10)
        ),
        "hyperband": lambda epochs: pruners.HyperbandPruner(
            min_resource=max(1, epochs // 27), max_resource=epochs
        ),
        "halving": lambda epochs: pruners.SuccessiveHalvingPruner(
            min_resource=max(1, epochs // 27)
        ),
        "none": lambda _: pruners.NopPruner(),
    }


SAMPLERS = ("tpe", "random", "nsgaii", "gp")
PRUNERS = ("median", "hyperband", "halving", "none")


def sampler_for(name: str, seed: int, number: int, *, parallel: bool) -> "BaseSampler":
    """The sampler of trial ``number``."""
    if name not in SAMPLERS:
        raise RequestError(f"--sampler: no sampler '{name}'{did_you_mean(name, SAMPLERS)}")
    if name == "gp" and find_spec("scipy") is None:
        raise RequestError("--sampler gp needs scipy: pip install scipy")
    trial_seed = int(Rng(seed).at("tune", "sampler", number).numpy().integers(2**32))
    return _samplers()[name](trial_seed, parallel)


def pruner_for(name: str, epochs: int) -> "BasePruner":
    """The pruner for trainings of at most ``epochs`` epochs."""
    if name not in PRUNERS:
        raise RequestError(f"--pruner: no pruner '{name}'{did_you_mean(name, PRUNERS)}")
    return _pruners()[name](epochs)


def set_digest(stored: StoredSet) -> str:
    """SHA-256 of a set's images, labels, owners and description."""
    digest = hashlib.sha256(msgspec.json.encode(stored.metadata))
    for tensor in (stored.images, stored.labels, stored.clients):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def open_study(file: Path, experiment: Table, pruner: "BasePruner") -> Iterator["Study"]:
    """The study in this file, ready to continue; a new one if there is none.

    ``experiment`` is all that determines the trials' values: a study of another one is refused.
    """
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
    from optuna.trial import TrialState

    with _held(file):
        _repair(file)
        new = not file.stat().st_size
        try:
            backend = JournalFileBackend(str(file), JournalFileOpenLock(str(file)))
            storage = JournalStorage(backend)
            if new:
                study = optuna.create_study(
                    storage=storage, study_name=NAME, direction="maximize", pruner=pruner
                )
            else:
                study = optuna.load_study(storage=storage, study_name=NAME, pruner=pruner)
            before, trials = study.user_attrs.get(_EXPERIMENT), study.get_trials(deepcopy=False)
        except OSError:
            raise
        except Exception as error:  # Optuna has no single error for files that it did not write
            raise RequestError(
                f"--study {file}: not a fedstill study: {type(error).__name__}: {error}"
            ) from error
        if before is None and not trials:  # new, or killed just after it was made
            study.set_user_attr(_EXPERIMENT, experiment)
        else:
            _refuse_other(file, before, experiment)
        for trial in trials:
            if trial.state == TrialState.RUNNING:
                storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)
        yield study


def _refuse_other(file: Path, before: Any, now: Table) -> None:
    known = before if isinstance(before, dict) else {}
    # Through JSON, like the one on disk: tuples become lists.
    now = msgspec.json.decode(msgspec.json.encode(now))
    changed = [key for key in sorted(known.keys() | now.keys()) if known.get(key) != now.get(key)]
    if changed:
        raise RequestError(
            f"--study {file}: it belongs to another experiment: {', '.join(changed)} "
            f"{'differs' if len(changed) == 1 else 'differ'}; choose another file"
        )


@contextmanager
def _held(file: Path) -> Iterator[None]:
    """Hold the lock that keeps other processes from using the study."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(file, os.O_CREAT | os.O_RDWR, 0o666)
    except OSError as error:
        raise RequestError(f"--study {file}: {error.strerror}; choose another file") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RequestError(f"--study {file}: another process is using it") from error
        yield
    finally:
        os.close(handle)


def _repair(file: Path) -> None:
    """Remove what a kill left: Optuna's lock, and an incomplete last line."""
    with file.open("r+b") as journal:
        head = journal.read(len(_FIRST_BYTES))
        if head != _FIRST_BYTES[: len(head)]:  # not our file: leave it unchanged
            raise RequestError(f"--study {file}: not a fedstill study; choose another file")
        size = end = journal.seek(0, os.SEEK_END)
        while end and not _ends_line(journal, end):
            end -= 1
        if end != size:
            journal.truncate(end)
    Path(f"{file}.lock").unlink(missing_ok=True)


def _ends_line(journal: BinaryIO, at: int) -> bool:
    journal.seek(at - 1)
    return journal.read(1) == b"\n"
