"""The experiment as data: strict, complete, the same in TOML, on the command line and in Python.

A request is a nested table. ``resolve`` turns it into an ``Experiment`` in which nothing is left
open, or refuses it with the dotted path of the key, its value and the nearest valid name;
``Experiment.table`` is what the run folder's ``config.toml`` holds.
"""

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta

from fedstill.data import (
    CHARACTERS,
    SOURCES,
    CorruptSettings,
    DataSettings,
    Source,
    parse_partition,
)
from fedstill.defence import DefenceSettings
from fedstill.errors import RequestError, did_you_mean
from fedstill.methods import find_method
from fedstill.models import DEFAULT_MODEL, Model, build_own, find_model
from fedstill.privacy.settings import PrivacySettings
from fedstill.rng import Rng
from fedstill.tables import Table, as_table, convert, flat, without_none
from fedstill.wire import check_codec

# Words that may be given as a plain string: it is the table's ``name``.
_SHORTHANDS = ("method", "model", "data", "engine")
# Settings that change where or how fast a run is computed, never a bit of its result.
_FREE = ("engine.workers", "engine.round_timeout", "engine.join_timeout", "data.dir")


@dataclass(frozen=True)
class WireSettings:
    """How messages are coded on their way."""

    up: str = "float32"
    down: str = "float32"


@dataclass(frozen=True)
class EngineSettings:
    """Where clients run. Results depend on the threads of one computation, not on the workers."""

    name: Literal["local", "flower"] = "local"
    workers: Annotated[int, Meta(ge=1)] | None = None  # None: as many as there are cores
    threads: Annotated[int, Meta(ge=1)] = 1  # of each client
    # Fixed, so that results do not depend on the machine; and threads that wait for each other on
    # a busy machine are far slower than one.
    server_threads: Annotated[int, Meta(ge=1)] = 1
    # Of a Flower round, in seconds. None: as long as the nodes are alive.
    round_timeout: Annotated[float, Meta(gt=0)] | None = None
    join_timeout: Annotated[float, Meta(gt=0)] = 120.0  # how long nodes are waited for


@dataclass(frozen=True)
class Experiment:
    """Everything that decides a run's result.

    ``method`` and ``model`` are tables with a ``name``; their other keys are the settings of the
    class that the name stands for.
    """

    method: Table
    model: Table = field(default_factory=lambda: {"name": DEFAULT_MODEL})
    data: DataSettings = field(default_factory=DataSettings)
    partition: str = "dirichlet:0.1"
    clients: Annotated[int, Meta(ge=1)] | None = None  # None: 10, or the data's own number
    allow_empty_clients: bool = False
    participation: Annotated[float, Meta(gt=0, le=1)] = 1.0
    rounds: Annotated[int, Meta(ge=1)] = 20
    quorum: Annotated[float, Meta(gt=0, le=1)] = 1.0  # of the sampled clients must answer
    seed: Annotated[int, Meta(ge=0)] = 0
    eval_every: Annotated[int, Meta(ge=1)] = 1
    device: str = "cpu"
    corrupt: CorruptSettings = field(default_factory=CorruptSettings)
    defence: DefenceSettings = field(default_factory=DefenceSettings)
    wire: WireSettings = field(default_factory=WireSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    privacy: PrivacySettings | None = None  # None: no privacy at all

    @property
    def table(self) -> Table:
        """The experiment as plain values, ready for TOML."""
        return without_none(as_table(self))

    def needed(self, clients: int) -> int:
        """How many of the sampled clients must answer: the quorum."""
        return max(1, math.ceil(self.quorum * clients - 1e-9))

    def build_method(self) -> Any:
        """The method with its settings."""
        return convert(_settings(self.method), find_method(self.method["name"]), "method")

    def build_model(self, shape: tuple[int, ...], classes: int) -> Model:
        """The network for inputs of this shape."""
        entry = find_model(self.model["name"])
        settings = _settings(self.model)
        if entry is None:
            rng = Rng(self.seed).at("own model")
            return build_own(self.model["name"], settings, shape, classes, rng)
        table = {**settings, "shape": list(shape), "classes": classes}
        model: Model = convert(table, entry.cls, "model")
        return model


def spelled_out(request: Mapping[str, Any]) -> Table:
    """The request without open words, and ``method = "fedavg"`` written as a table."""
    return {
        key: {"name": value} if key in _SHORTHANDS and isinstance(value, str) else value
        for key, value in without_none(request).items()
    }


def resolve(request: Mapping[str, Any], own_method: Any = None) -> Experiment:
    """The experiment that this request asks for, every open setting decided.

    ``own_method`` is a method object that serves instead of the one that ``method.name`` names.
    """
    table = spelled_out(request)
    table.setdefault("method", {})
    table.setdefault("model", {})
    source = _known_data(table)
    if source is not None and source.partition is not None:
        table.setdefault("partition", source.partition)
    if isinstance(table["model"], dict):
        usual = (source.model if source else None) or DEFAULT_MODEL
        table["model"] = {"name": usual, **table["model"]}
    experiment = convert(table, Experiment, "")
    if experiment.privacy is not None:
        experiment.privacy.check()
    if "name" not in experiment.method:
        raise RequestError("method: which one? `fedstill list methods` shows them")
    for key, section in (("method", experiment.method), ("model", experiment.model)):
        if not isinstance(section["name"], str):
            raise RequestError(f"{key}.name: expected str (it is {section['name']!r})")
    experiment = dataclasses.replace(
        experiment,
        method=_full_method(experiment, own_method),
        model=_full_model(experiment),
        engine=_full_engine(experiment),
        data=_lasting(experiment.data),
    )
    parse_partition(experiment.partition)
    _check_defence(experiment, own_method)
    check_codec(experiment.wire.up, "wire.up")
    check_codec(experiment.wire.down, "wire.down")
    return experiment


def check_types(request: Mapping[str, Any]) -> None:
    """Refuse wrong words and types in a table that others will be laid over."""
    convert({"method": {}, **spelled_out(request)}, Experiment, "")


def changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Dotted keys on which two resolved tables differ in a way that matters to the result."""
    a, b = deciding(old), deciding(new)
    return [k for k in sorted(a.keys() | b.keys()) if a.get(k) != b.get(k)]


def deciding(table: Mapping[str, Any]) -> Table:
    """The settings that decide the result, by dotted key and in order."""
    return {k: v for k, v in sorted(flat(table).items()) if k not in _FREE}


def _known_data(table: Mapping[str, Any]) -> Source | None:
    """The entry of the data set that is asked for: what it is usually split and learnt by."""
    data = table.get("data")
    name = data.get("name") if isinstance(data, Mapping) else None
    return SOURCES.get(name) if isinstance(name, str) else None


def _settings(table: Table) -> Table:
    return {k: v for k, v in table.items() if k != "name"}


def _full_method(experiment: Experiment, own_method: Any) -> Table:
    if own_method is None:
        experiment = dataclasses.replace(experiment, method=_with_defaults(experiment))
    method = own_method or experiment.build_method()
    settings = without_none(as_table(method))
    return {"name": experiment.method["name"], **settings}


def _check_defence(experiment: Experiment, own_method: Any) -> None:
    method = own_method or find_method(experiment.method["name"])
    if experiment.defence.mode != "off" and not getattr(method, "sends_sets", False):
        name, vectors = experiment.method["name"], hasattr(method, "aggregate")
        remedy = "set method.aggregate = 'median' instead" if vectors else "leave it out"
        raise RequestError(
            f"defence.mode = '{experiment.defence.mode}': the clients of {name} send no synthetic "
            f"sets that could be judged; {remedy}"
        )


def _with_defaults(experiment: Experiment) -> Table:
    """The method's settings over its defaults for private runs, in a private run.

    Only what was left open is filled in: a setting that leaks is refused, never mended.
    """
    if experiment.privacy is None:
        return experiment.method
    cls = find_method(experiment.method["name"])
    return {**getattr(cls, "PRIVATE_DEFAULTS", {}), **experiment.method}


def _full_model(experiment: Experiment) -> Table:
    """The model's defaults filled in; what depends on the data's shape stays open."""
    entry = find_model(experiment.model["name"])
    if entry is None:
        return experiment.model
    for key in _settings(experiment.model):
        if key not in entry.settings:
            raise RequestError(f"model.{key}: no such setting{did_you_mean(key, entry.settings)}")
    return without_none({"name": "", **entry.settings, **experiment.model})


def _lasting(data: DataSettings) -> DataSettings:
    """Paths in full, so that the run can be resumed from any folder."""

    def full(path: str) -> str:
        return str(Path(path).expanduser().resolve())

    local = data.name not in SOURCES and not data.name.startswith("hub:")
    in_dir = data.dir is not None and (Path(data.dir).expanduser() / data.name).exists()
    name = full(data.name) if local and not in_dir and Path(data.name).exists() else data.name
    words = data.vocabulary
    if words is not None and words != CHARACTERS:
        words = full(words)
    return dataclasses.replace(data, name=name, dir=data.dir and full(data.dir), vocabulary=words)


def _full_engine(experiment: Experiment) -> EngineSettings:
    try:
        probe = torch.zeros(1, device=experiment.device)
        probe.item()  # a device without numbers is of no use
        on_cpu = probe.device.type == "cpu"
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise RequestError(f"device: '{experiment.device}' cannot be used: {reason}") from error
    cores = os.cpu_count() or 1
    engine = experiment.engine
    return dataclasses.replace(
        engine,
        # Processes of one thread beat threads of one process; an accelerator is not shared well.
        workers=engine.workers or (max(1, cores // engine.threads) if on_cpu else 1),
    )
