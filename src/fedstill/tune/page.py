"""The study as one HTML page with Optuna's figures. It needs no network: the scripts are inside."""

import html
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstill.files import write_atomically

if TYPE_CHECKING:
    from optuna import Study

_VALUE = "accuracy"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; padding: 0 1rem;
       color: #1c2733; background: #fff; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: .2rem .8rem .2rem 0; text-align: left; white-space: nowrap; }
th { border-bottom: 1px solid #889; } td { border-bottom: 1px solid #dde; }
.value { text-align: right; font-variant-numeric: tabular-nums; }
"""


def write_page(path: Path, study: "Study", title: str, lines: list[str]) -> None:
    """Write the page: what was found, the figures, and every trial."""
    body = [f"<h1>{html.escape(title)}</h1>"]
    body += [f"<p>{html.escape(line)}</p>" for line in lines]
    body += list(_figures(study))
    body.append(_trials(study))
    text = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>{''.join(body)}</body></html>\n"
    )
    write_atomically(path, text.encode())


def _figures(study: "Study") -> Iterator[str]:
    """History; then importance and parallel coordinates of what all have, and kind by kind."""
    from optuna import visualization as draw
    from optuna.importance import PedAnovaImportanceEvaluator

    figures: dict[str, Callable[[], Any]] = {
        "How the best was found": lambda: draw.plot_optimization_history(study, target_name=_VALUE)
    }
    for title, part, params in _parts(study):
        figures[f"What mattered{title}"] = partial(
            draw.plot_param_importances,
            part,
            evaluator=PedAnovaImportanceEvaluator(),
            params=params,
            target_name=_VALUE,
        )
        figures[f"Settings and accuracy{title}"] = partial(
            draw.plot_parallel_coordinate, part, params=params, target_name=_VALUE
        )
    scripts: str | bool = True  # once, inside the page
    for number, (title, figure) in enumerate(figures.items()):
        yield f"<h2>{html.escape(title)}</h2>"
        try:
            with warnings.catch_warnings():  # of Optuna, that there are few trials
                warnings.simplefilter("ignore")
                drawn = figure()
        except (ValueError, RuntimeError, ImportError) as error:  # too few trials to draw from
            yield f"<p>{html.escape(str(error))}</p>"
            continue
        drawn.update_layout(title=None, margin={"t": 40})
        yield drawn.to_html(
            full_html=False,
            include_plotlyjs=scripts,
            default_height="30rem",
            div_id=f"figure-{number}",
        )
        scripts = False


def _parts(study: "Study") -> "Iterator[tuple[str, Study, list[str]]]":
    """Title, trials and settings of a part: what all trials have, then what one kind has."""
    import optuna

    done = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if not done:
        return
    common = set.intersection(*(set(trial.params) for trial in done))
    if common:
        yield "", study, sorted(common)
    kinds = {name.rpartition(".")[0] for trial in done for name in trial.params.keys() - common}
    for kind in sorted(kinds):
        trials = [trial for trial in done if any(n.startswith(f"{kind}.") for n in trial.params)]
        part = optuna.create_study(direction="maximize")
        part.add_trials(trials)
        yield f": {kind}", part, sorted(n for n in trials[0].params if n.startswith(f"{kind}."))


def _trials(study: "Study") -> str:
    ordered = sorted(
        study.get_trials(deepcopy=False),
        key=lambda t: (t.state.name != "COMPLETE", -(t.value or 0.0), t.number),
    )
    rows = []
    for trial in ordered:
        value = "" if trial.value is None else f"{trial.value:.4f}"
        settings = ", ".join(f"{name} {_short(v)}" for name, v in trial.params.items())
        rows.append(
            f'<tr><td class="value">{trial.number}</td><td>{trial.state.name.lower()}</td>'
            f'<td class="value">{value}</td><td>{html.escape(settings)}</td></tr>'
        )
    return (
        "<h2>All trials</h2><table><thead><tr><th>trial</th><th>state</th><th>accuracy</th>"
        f"<th>settings</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
