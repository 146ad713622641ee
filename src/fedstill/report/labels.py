"""Names of runs that are compared: what distinguishes each from the others, and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedstill.config import deciding
from fedstill.config.nested import Table, flat
from fedstill.methods import METHODS
from fedstill.report.sentences import defaults_of
from fedstill.report.source import RunView

_ASIDE = ("seed", "engine.threads", "engine.server_threads", "device")
_OWN_COLUMN = ("method.name", "rounds", "privacy.epsilon")


@dataclass(frozen=True)
class _Known:
    """The settings of a run that decide its result, and those that it has at their defaults."""

    settings: Table
    usual: frozenset[str]
    preferred: frozenset[str]  # of these, what its method prefers: `Method.DEFAULTS`

    @property
    def private(self) -> bool:
        return any(key.startswith("privacy.") for key in self.settings)


def settings_of(run: RunView) -> Table:
    """The settings that decide the result, the seed apart."""
    known = {k: v for k, v in deciding(run.config).items() if k not in _ASIDE}
    return known or {"folder": str(run.path)}  # settings unknown: like no other run


def labels(runs: Sequence[RunView]) -> list[str]:
    """A name for each: what distinguishes it from the others. Epsilon and the rounds have columns
    of their own, and are in a name only where nothing else is."""
    known = [_known(run) for run in runs]
    methods = [str(run.summary["method"]) for run in runs]
    names = []
    for method, this in zip(methods, known, strict=True):
        chosen = [key for key in this.settings if _distinguishes(key, this, known)]
        settings = [
            f"{k.removeprefix('method.').removesuffix('.name')} {this.settings[k]}" for k in chosen
        ]
        name = [method] if len(set(methods)) > 1 or not settings else []
        names.append(", ".join([*name, *settings]))
    for more in (_budget, lambda run: f"rounds {run.planned}", lambda run: run.path.name):
        names = _told_apart(names, [more(run) for run in runs])
    return names


def _known(run: RunView) -> _Known:
    settings, usual = settings_of(run), defaults_of(run)
    at_default = {key for key, value in settings.items() if key in usual and usual[key] == value}
    method = METHODS.get(str(settings.get("method.name")))
    preferred = flat(method.DEFAULTS) if method is not None else {}
    return _Known(settings, frozenset(at_default), frozenset(at_default & preferred.keys()))


def _told_apart(names: Sequence[str], more: Sequence[str]) -> list[str]:
    """Equal names with one thing more each, where that distinguishes them."""
    pairs = list(zip(names, more, strict=True))
    kinds = {name: {word for other, word in pairs if other == name} for name in names}
    return [f"{name}, {word}" if len(kinds[name]) > 1 else name for name, word in pairs]


def _distinguishes(key: str, this: _Known, known: Sequence[_Known]) -> bool:
    """Whether a setting differs from that of a run it can be compared with: settings of a method,
    a network or a mechanism are those of the same one only. Where both runs have the default of
    their methods (the codec), or one of them has what its method prefers (a linear classifier), the
    method's name says it."""
    settings = this.settings
    if key in _OWN_COLUMN or (key == "privacy.sigma" and "privacy.epsilon" in settings):
        return False
    section, _, name = key.partition(".")
    if key in this.preferred:
        return False
    rivals = [
        r for r in known if key not in r.preferred and not (key in this.usual and key in r.usual)
    ]
    if name not in ("", "name"):
        same = f"{section}.name"
        rivals = [r for r in rivals if r.settings.get(same) == settings.get(same)]
    if section in ("method", "privacy") and name != "name":  # private runs have other defaults
        rivals = [r for r in rivals if r.private == this.private]
    return any(rival.settings.get(key) != settings[key] for rival in rivals)


def _budget(run: RunView) -> str:
    epsilon = run.summary.get("epsilon")
    return "no privacy" if epsilon is None else f"epsilon {epsilon:.3g}"
