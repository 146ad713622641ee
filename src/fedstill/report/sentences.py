"""The sentences of a page."""

import shlex
from typing import Any

from fedstill.config import resolve
from fedstill.config.nested import Table, flat
from fedstill.data import parse_partition
from fedstill.draw.numbers import duration, in_bytes, in_percent
from fedstill.errors import RequestError
from fedstill.methods import METHODS
from fedstill.models import MODELS
from fedstill.report.source import RunView

_OPTIONS = {
    "data.name": "--data",
    "data.dir": "--data-dir",
    "model.name": "--model",
    "clients": "--clients",
    "partition": "--partition",
    "participation": "--participation",
    "rounds": "--rounds",
    "privacy.epsilon": "--epsilon",
    "privacy.delta": "--delta",
    "device": "--device",
    "seed": "--seed",
}
_ASIDE = ("method.name", "engine.workers")  # given otherwise, or of no weight for the result


def sentence(run: RunView) -> str:
    """The run in one sentence."""
    known = run.summary
    who = f"{known['clients']} clients" if known.get("clients") else "The clients"
    if known.get("clients") == 1:
        who = "One client"
    who += f" ({_partition(str(known['partition']))})" if known.get("partition") else ""
    network = f" a {known['model']}" if known.get("model") else " a model"
    if known.get("model_size"):
        network += f" of {known['model_size']:,} weights"
    trained = f"{who} trained{network} with {known['method']} on {known['data']}"
    if not run.rounds:
        return f"{trained}; no round has ended yet."
    rounds = known["rounds_done"]
    up, down = in_bytes(known["up_bytes"]), in_bytes(known["down_bytes"])
    end = f"after {rounds} {'round' if rounds == 1 else 'rounds'}"
    if run.status != "done":
        end += f" of {run.planned} ({run.status})"
    accuracy = known.get("accuracy")
    score = f" it reaches {in_percent(accuracy)} test accuracy" if accuracy is not None else ""
    return (
        f"{trained}: {end}{score}, with {up} uploaded and {down} downloaded "
        f"in {duration(known['seconds'])} of computing."
    )


def _partition(text: str) -> str:
    try:
        return parse_partition(text).sentence
    except RequestError:  # of another version
        return text


def epsilon_explained(epsilon: float, delta: float | None) -> str:
    """What a budget means, without formulas."""
    factor = 2.718281828459045**epsilon if epsilon < 30 else float("inf")
    times = f"{factor:,.1f}" if factor < 1000 else f"{factor:,.0f}" if factor < 1e7 else "millions"
    slack = f", but for a chance of {delta:g}" if delta else ""
    kind = (
        "a strong guarantee"
        if epsilon <= 1
        else "a usual guarantee"
        if epsilon <= 10
        else "a weak guarantee"
    )
    return (
        f"Whether one person's record was in the data or not changes the probability of anything "
        f"that left its client by a factor of at most {times} (e to the {epsilon:.2f}){slack}. "
        f"That is {kind}: the smaller, the better, and 1 would mean that nothing can be learnt "
        f"about a single record."
    )


DETAILS = {  # what a number that methods report means, and what a reader may wonder about
    "matching_loss": (
        "How far the features (or gradients) of the synthetic images are from those of the "
        "clients' records at the end of a round's distillation. Each round measures it with its "
        "own weights, so rounds do not share a scale: it may rise while the accuracy does."
    ),
}

NO_PRIVACY = (
    "This run had no privacy mechanism. Synthetic images are not private by themselves: without "
    "noise they can give records away, and so can weights. Treat what the clients sent as if it "
    "were their data."
)


def command(run: RunView) -> str:
    """The shortest command that asks for this run again: what departs from the defaults."""
    parts = ["fedstill", "run", str(run.summary["method"])]
    for key, value, _ in departures(run):
        parts += [_OPTIONS[key], value] if key in _OPTIONS else ["--set", f"{key}={value}"]
    return shlex.join(parts)


def departures(run: RunView) -> list[tuple[str, str, str]]:
    """The settings that are not at their defaults: key, value and default."""
    settings, defaults = flat(run.config), defaults_of(run)
    return [
        (key, _toml(value), _toml(defaults[key]) if key in defaults else "-")
        for key, value in settings.items()
        if key not in _ASIDE and defaults.get(key) != value
    ]


def defaults_of(run: RunView) -> Table:
    """The defaults of the built-in methods and networks. User-supplied ones are not imported:
    looking at a run must not execute what its configuration names."""
    settings = flat(run.config)
    method, model = settings.get("method.name"), settings.get("model.name")
    usual = flat(_resolved(str(method) if method in METHODS else "fedavg", run.config))
    if method not in METHODS:
        usual = {key: value for key, value in usual.items() if not key.startswith("method.")}
    if model in (None, usual["model.name"]):
        return usual
    usual = {key: value for key, value in usual.items() if not key.startswith("model.")}
    return {**usual, **_model_defaults(model)}


def _resolved(method: str, config: Table) -> Table:
    """A request for this method alone. A private run has other defaults, and needs a budget to be
    resolved; the budget itself has no default."""
    if "privacy" not in config:
        return resolve({"method": method}).table
    usual = resolve({"method": method, "privacy": {"epsilon": 1.0}}).table
    return {**usual, "privacy": {k: v for k, v in usual["privacy"].items() if k != "epsilon"}}


def _model_defaults(model: str) -> Table:
    entry = MODELS.get(model)
    return {f"model.{key}": value for key, value in entry.settings.items()} if entry else {}


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
