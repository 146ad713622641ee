"""The study as one HTML page with Optuna's figures. It needs no network: the scripts are inside."""

import html
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstill.files import write_atomically

if TYPE_CHECKING:
    from optuna import Study

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
    """Importance, history, and parallel coordinates: of what all have, and kind by kind."""
    from optuna import visualization as draw
    from optuna.importance import PedAnovaImportanceEvaluator

    def importance(params: list[str]) -> Callable[[], Any]:
        evaluator = PedAnovaImportanceEvaluator()
        return lambda: draw.plot_param_importances(study, evaluator=evaluator, params=params)

    def coordinates(params: list[str]) -> Callable[[], Any]:
        return lambda: draw.plot_parallel_coordinate(study, params=params)

    figures: dict[str, Callable[[], Any]] = {
        "How the best was found": lambda: draw.plot_optimization_history(study)
    }
    for title, params in _groups(study).items():
        if params:
            figures[f"What mattered{title}"] = importance(params)
            figures[f"Settings and accuracy{title}"] = coordinates(params)
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
        yield drawn.to_html(full_html=False, include_plotlyjs=scripts, div_id=f"figure-{number}")
        scripts = False


def _groups(study: "Study") -> dict[str, list[str]]:
    """The settings that all finished trials have, then those of each kind of network."""
    from optuna.trial import TrialState

    done = [set(t.params) for t in study.get_trials(states=(TrialState.COMPLETE,))]
    if not done:
        return {}
    common = set.intersection(*done)
    groups = {"": sorted(common)}
    kinds = {name.partition(".")[0] for params in done for name in params - common}
    for kind in sorted(kinds):
        own = {name for params in done for name in params if name.startswith(f"{kind}.")}
        groups[f": {kind}"] = sorted(own)
    return groups


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
