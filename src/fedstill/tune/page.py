"""The study as one HTML page, in the look of the reports: history, importances, every trial."""

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstill.files import write_atomically
from fedstill.report.embed import page
from fedstill.version import VERSION

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

SCRIPTS = ("scales.js", "chart.js", "save.js", "link.js", "tables.js", "tune.js")


def write_page(path: Path, study: "Study", title: str, lines: list[str]) -> None:
    """Write the page: what was found, the figures, and every trial."""
    trials = study.get_trials(deepcopy=False)
    parts = list(_parts(study))
    data = {"trials": [_trial(trial) for trial in trials], "parts": parts}
    ordered = sorted(
        trials, key=lambda t: (t.state.name != "COMPLETE", -(t.value or 0.0), t.number)
    )
    rows = [
        (
            trial.number,
            trial.state.name.lower(),
            "-" if trial.value is None else f"{trial.value:.2%}",
            ", ".join(f"{name} {_short(value)}" for name, value in trial.params.items()),
        )
        for trial in ordered
    ]
    made = page(
        "tune.html",
        title,
        SCRIPTS,
        data,
        lines=lines,
        groups=parts,
        rows=rows,
        version=VERSION,
    )
    write_atomically(path, made.encode())


def _trial(trial: "FrozenTrial") -> dict[str, Any]:
    return {
        "number": trial.number,
        "state": trial.state.name.lower(),
        "value": trial.value,
        "params": {name: _plain(value) for name, value in trial.params.items()},
    }


def _parts(study: "Study") -> Iterator[dict[str, Any]]:
    """Settings that belong together, and how much each mattered: what all trials have, then what
    those of one kind have."""
    import optuna

    done = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if not done:
        return
    common = set.intersection(*(set(trial.params) for trial in done))
    if common:
        yield _part("", study, sorted(common))
    kinds = {name.rpartition(".")[0] for trial in done for name in trial.params.keys() - common}
    for kind in sorted(kinds):
        trials = [trial for trial in done if any(n.startswith(f"{kind}.") for n in trial.params)]
        part = optuna.create_study(direction="maximize")
        part.add_trials(trials)
        yield _part(kind, part, sorted(n for n in trials[0].params if n.startswith(f"{kind}.")))


def _part(kind: str, study: "Study", params: list[str]) -> dict[str, Any]:
    """The importances of these settings, or why there are none."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    found: dict[str, float] = {}
    reason = ""
    try:
        with warnings.catch_warnings():  # of Optuna, that there are few trials
            warnings.simplefilter("ignore")
            shares = get_param_importances(
                study, evaluator=PedAnovaImportanceEvaluator(), params=params
            )
        found = {name: share for name, share in shares.items() if math.isfinite(share)}
    except (ValueError, RuntimeError, ImportError) as error:  # too few trials to tell
        reason = str(error)
    return {"kind": kind, "params": params, "importance": found, "reason": reason}


def _plain(value: Any) -> float | str:
    """A number if it is one (a switch is none), otherwise its text."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else str(value)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
