"""The search space: every setting of a candidate is fixed, a choice, or an interval.

A space is a table of dotted names. ``training.*`` are hyper-parameters, ``model.name`` is the kind
of network, and ``convnet.*``, ``mlp.*``, ``resnet18.*`` are the settings that only this kind has.
A rehearsal of the federation has ``federated.local_epochs`` too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, get_args

from msgspec import Meta

from fedstill.config import resolve_model
from fedstill.config.nested import Table, as_table, convert
from fedstill.config.registry import build_model, find_model
from fedstill.errors import RequestError, did_you_mean
from fedstill.models import MODELS
from fedstill.models.model import Searched
from fedstill.steps.training import Training
from fedstill.tune.training import DEFAULT_TRAINING

Search = Literal["hyper", "architecture", "both"]
SEARCHES: tuple[str, ...] = get_args(Search)


@dataclass(frozen=True)
class Choice:
    """One of these values; with a single one the setting is fixed."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Interval:
    """A number from low to high, inclusive; an integer if both are. ``log``: logarithmic."""

    low: float | int
    high: float | int
    log: bool = False


Dimension = Choice | Interval
Space = dict[str, Dimension]


class Suggests(Protocol):
    """The part of an Optuna trial that draws values."""

    def suggest_categorical(self, name: str, choices: Any) -> Any: ...

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int: ...

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float: ...


@dataclass(frozen=True)
class Federated:
    """What only a rehearsal of the federation has."""

    local_epochs: Annotated[int, Meta(ge=1)] = 1


@dataclass(frozen=True)
class Candidate:
    """A network and how to train it."""

    model: Table  # as in a configuration: name and settings
    training: Training
    federated: Federated | None = None  # None: trained in one place

    @property
    def local_epochs(self) -> int:
        """Epochs of a client between two averages; 1 where there are no clients."""
        return self.federated.local_epochs if self.federated else 1

    @property
    def reports(self) -> int:
        """How often its accuracy is reported: after every epoch, or every round of a rehearsal.

        The rounds have ``training.epochs`` in total; there is at least one.
        """
        return max(1, self.training.epochs // self.local_epochs)


def default_space(shape: tuple[int, ...]) -> Space:
    """Everything open, within what inputs of this shape allow."""
    offered = {
        name: entry.cls.search_space(shape) for name, entry in MODELS.items() if entry.searched
    }
    images = len(shape) == 3 and min(shape[1:]) >= 2
    return {
        "training.learning_rate": Interval(0.001, 0.3, log=True),
        "training.momentum": Choice((0.0, 0.5, 0.9)),
        "training.batch_size": Choice((16, 32, 64, 128)),
        "training.epochs": Choice((20, 40, 80)),
        "training.schedule": Choice(("constant", "step", "cosine")),
        "training.augment": Choice(("none", "dsa") if images else ("none",)),
        "training.flip": Choice((False,)),
        "training.optimiser": Choice(("sgd", "adam")),
        "model.name": Choice(tuple(name for name, settings in offered.items() if settings)),
        **{
            f"{name}.{key}": _searched(values)
            for name, settings in offered.items()
            for key, values in settings.items()
        },
    }


def _searched(values: Searched) -> Dimension:
    """What a model offers, as a dimension."""
    if isinstance(values, range):
        return Interval(values[0], values[-1])
    return Choice(values)


def narrowed(space: Space, search: str, model: Table) -> Space:
    """The part that ``search`` leaves open; the rest is fixed, the network to ``model``."""
    if search not in SEARCHES:
        raise RequestError(f"--search: no search '{search}'{did_you_mean(search, SEARCHES)}")
    if search == "architecture":
        fixed = {f"training.{k}": Choice((v,)) for k, v in as_table(DEFAULT_TRAINING).items()}
        return space | fixed
    if search == "hyper":
        fixed = {f"{model['name']}.{k}": Choice((v,)) for k, v in model.items() if k != "name"}
        training = {k: v for k, v in space.items() if k.startswith("training.")}
        return training | {"model.name": Choice((model["name"],))} | fixed
    return space


def rehearsed(space: Space, search: str) -> Space:
    """The same for a rehearsal: with local epochs, and nothing that FedAvg's clients do not do."""
    epochs = (1,) if search == "architecture" else (1, 2, 5)
    return space | {
        "federated.local_epochs": Choice(epochs),
        "training.schedule": Choice(("constant",)),
        "training.augment": Choice(("none",)),
    }


def with_changes(space: Space, changes: Mapping[str, Any]) -> Space:
    """A space with some settings replaced, as a ``--space`` file says.

    A value fixes its setting, a list is a choice, and ``{low, high, log}`` an interval.
    """
    changed = dict(space)
    for group, settings in changes.items():
        if not isinstance(settings, Mapping):
            raise RequestError(f"--space: {group}: expected a table, e.g. [training]")
        for key, value in settings.items():
            name = f"{group}.{key}"
            if name not in space and not _is_setting(group, key):
                raise RequestError(f"--space: {name}: no such setting{did_you_mean(name, space)}")
            changed[name] = _dimension(name, value)
    return changed


def _is_setting(group: str, key: str) -> bool:
    """Whether a kind of network that is not in the space yet has this setting."""
    try:
        entry = find_model(group)
    except RequestError:
        return False
    return entry is None or key in entry.settings


def _dimension(name: str, value: Any) -> Dimension:
    if isinstance(value, Mapping):
        interval = convert(dict(value), Interval, f"--space: {name}")
        if not interval.low < interval.high or (interval.log and interval.low <= 0):
            raise RequestError(
                f"--space: {name}: from {interval.low} to {interval.high} is not an interval"
                + (" on a logarithmic scale" if interval.log else "")
            )
        return interval
    values = tuple(value) if isinstance(value, list) else (value,)
    if not values or len(set(map(repr, values))) < len(values):
        raise RequestError(f"--space: {name}: give different values, at least one")
    return Choice(values)


_BY_STEPS = ("balanced", "average")  # of a server's training, which has no epochs to prune


def check(space: Space, shape: tuple[int, ...], classes: int) -> None:
    """Refuse a space with a value that its setting cannot have, before anything starts."""
    for name, dimension in space.items():
        group, _, key = name.rpartition(".")
        values = _ends(dimension)
        if group == "training" and key in _BY_STEPS and any(values):
            raise RequestError(f"--space: {name}: candidates are trained in plain epochs")
        for value in values if group == "training" else ():
            convert({**as_table(DEFAULT_TRAINING), key: value}, Training, "training")
        for value in values if group == "federated" else ():
            convert({key: value}, Federated, "federated")
        for value in values if group in kinds_of(space) else ():
            build_model(resolve_model({"name": group, key: value}), shape, classes)
    for kind in kinds_of(space):
        build_model(resolve_model({"name": kind}), shape, classes)


def _ends(dimension: Dimension) -> tuple[Any, ...]:
    return dimension.values if isinstance(dimension, Choice) else (dimension.low, dimension.high)


def suggest(trial: Suggests, space: Space) -> Candidate:
    """The candidate of a trial: only the settings that its kind of network has are drawn."""

    def draw(name: str) -> Any:
        dimension = space[name]
        if isinstance(dimension, Choice):
            if len(dimension.values) == 1:
                return dimension.values[0]
            return trial.suggest_categorical(name, dimension.values)
        if isinstance(dimension.low, int) and isinstance(dimension.high, int):
            return trial.suggest_int(name, dimension.low, dimension.high, log=dimension.log)
        return trial.suggest_float(name, dimension.low, dimension.high, log=dimension.log)

    def drawn(group: str) -> Table:
        start = f"{group}."
        return {name.removeprefix(start): draw(name) for name in space if name.startswith(start)}

    training = convert(drawn("training"), Training, "training")
    kind = draw("model.name")
    federated = drawn("federated")
    return Candidate(
        {"name": kind, **drawn(kind)},
        training,
        convert(federated, Federated, "federated") if federated else None,
    )


def as_plain(space: Space) -> Table:
    """The space as plain values, to be kept with a study."""
    return {name: as_table(dimension) for name, dimension in sorted(space.items())}


def open_settings(space: Space) -> list[str]:
    """The settings that are searched: neither fixed nor of a kind that is not offered."""
    groups = ("training.", "federated.", "model.", *(f"{kind}." for kind in kinds_of(space)))
    return [
        name
        for name, dimension in space.items()
        if name.startswith(groups)
        and not (isinstance(dimension, Choice) and len(dimension.values) == 1)
    ]


def kinds_of(space: Space) -> tuple[str, ...]:
    """The kinds of network that are offered."""
    kinds = space["model.name"]
    if not isinstance(kinds, Choice) or not all(isinstance(kind, str) for kind in kinds.values):
        raise RequestError("--space: model.name: give names of `fedstill list models`")
    return kinds.values
