"""From a request to an experiment: strict, the same in TOML, on the command line and in Python.

A request is a nested table. ``resolve`` turns it into an ``Experiment`` in which every setting has
a value, or refuses it with the dotted path of the key, its value and the nearest valid name;
``Experiment.table`` is what the run folder's ``config.toml`` holds. Sections that others need
without the rest are resolved alone: ``resolve_model``, ``resolve_partitioning``.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import torch

from fedstill.config.experiment import (
    EngineSettings,
    Experiment,
    Partitioning,
    WireSettings,
)
from fedstill.config.nested import (
    Table,
    as_table,
    convert,
    flat,
    merged,
    without_none,
)
from fedstill.config.registry import build_method, find_method, find_model, settings_of
from fedstill.config.request import check_types, spelled_out
from fedstill.data import Dataset, DataSettings, parse_partition
from fedstill.data.expected import Expected, expected_from, expected_of
from fedstill.data.local import with_full_paths
from fedstill.errors import RequestError, did_you_mean
from fedstill.methods import METHODS, STARTS
from fedstill.models import DEFAULT_MODEL
from fedstill.types import AnyMethod
from fedstill.wire import find_codec

# Settings that change where or how fast a run is computed, never a bit of its result.
_FREE = (
    "engine.workers", "engine.round_timeout", "engine.join_timeout", "data.dir", "keep_sets"
)  # fmt: skip
_CODEC_OF_SETS = "bits8+zstd"  # of images, it keeps records' pixels exactly
_DECIDES_WITH_FAULTS = "engine.round_timeout"  # it is what makes a slow client late


def resolve(
    request: Mapping[str, Any], method: AnyMethod | None = None, data: Dataset | None = None
) -> Experiment:
    """The experiment that this request asks for, with every setting resolved.

    ``method`` and ``data`` are user-supplied objects that replace what the request names.
    """
    return resolve_with_method(request, method, data)[0]


def resolve_with_method(
    request: Mapping[str, Any], method: AnyMethod | None = None, data: Dataset | None = None
) -> tuple[Experiment, AnyMethod]:
    """The experiment, and its method, which is built once and supplies the defaults."""
    table = _with_method_defaults(spelled_out(request), method)
    table.setdefault("method", {})
    table.setdefault("model", {})
    model = table["model"]
    if "partition" not in table or (isinstance(model, dict) and "name" not in model):
        expected = expected_of(data) if data is not None else _expected_from(table)
        if expected.partition is not None:
            table.setdefault("partition", expected.partition)
        if isinstance(model, dict):
            table["model"] = {"name": expected.model or DEFAULT_MODEL, **model}
    experiment = convert(table, Experiment, "")
    if experiment.privacy is not None:
        experiment.privacy.check()
    if "name" not in experiment.method:
        raise RequestError("method: which one? `fedstill list methods` shows them")
    for key, section in (("method", experiment.method), ("model", experiment.model)):
        _check_name(key, section)
    method = method or build_method(_with_private_defaults(experiment))
    experiment = dataclasses.replace(
        experiment,
        method={"name": experiment.method["name"], **without_none(as_table(method))},
        model=resolve_model(experiment.model),
        engine=_resolve_engine(experiment.engine, experiment.device),
        data=with_full_paths(experiment.data),
        wire=_resolve_wire(experiment.wire, method),
        start=_resolve_start(experiment),
    )
    parse_partition(experiment.partition)
    _check_defence(experiment, method)
    _check_faults(experiment)
    find_codec(experiment.wire.up, "wire.up")
    find_codec(experiment.wire.down, "wire.down")
    return experiment, method


def resolve_model(section: Mapping[str, Any]) -> Table:
    """A ``[model]`` section with its defaults; what depends on the data's shape stays open."""
    section = {"name": DEFAULT_MODEL, **section}
    _check_name("model", section)
    entry = find_model(section["name"])
    if entry is None:
        return section
    for key in settings_of(section):
        if key not in entry.settings:
            raise RequestError(f"model.{key}: no such setting{did_you_mean(key, entry.settings)}")
    return without_none({"name": "", **entry.settings, **section})


def resolve_partitioning(request: Mapping[str, Any]) -> Partitioning:
    """The part of a request that says who holds which records; its other settings are checked."""
    table = spelled_out(request)
    check_types(table)
    if "partition" not in table and (natural := _expected_from(table).partition) is not None:
        table["partition"] = natural
    names = {field.name for field in dataclasses.fields(Partitioning)}
    for key in flat(table):
        if key.partition(".")[0] not in names:
            raise RequestError(f"{key}: the partition does not depend on it; leave it out")
    part = convert(table, Partitioning, "")
    parse_partition(part.partition)
    return dataclasses.replace(part, data=with_full_paths(part.data))


def check_device(device: str) -> torch.device:
    """The device of this name, refused if it cannot be used here."""
    try:
        probe = torch.zeros(1, device=device)
        probe.item()  # the meta device holds no values
        return probe.device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise RequestError(f"device: '{device}' cannot be used: {reason}") from error


def changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Dotted keys in which two resolved tables differ and that affect the result."""
    a, b = deciding(old), deciding(new)
    return [k for k in sorted(a.keys() | b.keys()) if a.get(k) != b.get(k)]


def deciding(table: Mapping[str, Any]) -> Table:
    """The settings that determine the result, by dotted key and in order."""
    settings = flat(table)
    slow = settings.get("faults.slow", 0) > 0
    free = [key for key in _FREE if not (slow and key == _DECIDES_WITH_FAULTS)]
    return {k: v for k, v in sorted(settings.items()) if k not in free}


def _expected_from(table: Mapping[str, Any]) -> Expected:
    """The default partition and model for the requested data."""
    return expected_from(convert(table.get("data", {}), DataSettings, "data"))


def _with_method_defaults(table: Table, method: AnyMethod | None) -> Table:
    """The request over the settings that its method prefers where the request leaves them open."""
    section = table.get("method")
    name = section.get("name") if isinstance(section, Mapping) else None
    if method is None and (not isinstance(name, str) or (name not in METHODS and ":" not in name)):
        return table  # refused later, with the reason
    return merged(dict((method or find_method(str(name))).DEFAULTS), table)


def _check_name(key: str, section: Mapping[str, Any]) -> None:
    if not isinstance(section["name"], str):
        raise RequestError(f"{key}.name: expected str (it is {section['name']!r})")


def _with_private_defaults(experiment: Experiment) -> Table:
    """The method's settings over its defaults for private runs, in a private run.

    Only missing settings are filled in: a setting that leaks is refused, never changed.
    """
    if experiment.privacy is None:
        return experiment.method
    cls, given = find_method(experiment.method["name"]), experiment.method
    defaults = dict(cls.PRIVATE_DEFAULTS)
    for first, *others in cls.PRIVATE_TOGETHER:
        if first in given and given[first] != defaults[first]:
            for other in others:
                del defaults[other]
        elif first not in given and (alone := next((o for o in others if o in given), None)):
            raise RequestError(
                f"method.{alone}: what {given[alone]!r} means depends on method.{first}, which is "
                f"'{defaults[first]}' in a private run unless you set it; set both"
            )
    return {**defaults, **given}


def _resolve_start(experiment: Experiment) -> Table | None:
    """The ``[start]`` section with every setting of its method."""
    section = experiment.start
    if section is None:
        return None
    name = section.get("name")
    if name not in STARTS:
        raise RequestError(
            f"start.name: a run starts with one of {', '.join(STARTS)} (it is {name!r})"
        )
    if experiment.rounds < 2:
        raise RequestError(
            f"start: the first round is {name}'s, and with rounds = {experiment.rounds} there is "
            f"none for {experiment.method['name']}; set rounds to 2 or more"
        )
    return {"name": name, **without_none(as_table(build_method(section, "start")))}


def _check_defence(experiment: Experiment, method: AnyMethod) -> None:
    if experiment.defence.mode != "off" and not method.heeds_trust:
        raise RequestError(
            f"defence.mode = '{experiment.defence.mode}': the clients of "
            f"{experiment.method['name']} send no synthetic sets that it could judge; "
            f"{method.instead_of_defence}"
        )


def _check_faults(experiment: Experiment) -> None:
    faults, engine = experiment.faults, experiment.engine
    if faults is None:
        return
    if engine.name != "local":
        raise RequestError(
            f"faults: only the local engine has faults on purpose, and engine.name is "
            f"'{engine.name}'; leave [faults] out, or use engine.name = 'local'"
        )
    limit = engine.round_timeout
    if faults.slow and (limit is None or faults.slow_seconds <= limit):
        raise RequestError(
            f"faults.slow: a client of {faults.slow_seconds:g} s is late only where "
            "engine.round_timeout is shorter: set engine.round_timeout, or raise "
            "faults.slow_seconds"
        )


def _resolve_wire(wire: WireSettings, method: AnyMethod) -> WireSettings:
    """The codec that ``auto`` stands for. It depends on the method alone: with privacy on, nothing
    about a message's form may depend on records."""
    chosen = _CODEC_OF_SETS if method.sends_sets else "float32"
    return dataclasses.replace(wire, up=chosen) if wire.up == "auto" else wire


def _resolve_engine(engine: EngineSettings, device: str) -> EngineSettings:
    on_cpu = check_device(device).type == "cpu"
    cores = os.cpu_count() or 1
    return dataclasses.replace(
        engine,
        # Processes with one thread each are faster than threads; an accelerator is not shared.
        workers=engine.workers or (max(1, cores // engine.threads) if on_cpu else 1),
    )
