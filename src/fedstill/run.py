"""``fedstill.run``: what a program may ask for, names or objects."""

import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedstill.build import UserObjects, path_of
from fedstill.config.nested import convert, merged
from fedstill.config.registry import check_method
from fedstill.config.request import requested
from fedstill.data import Dataset, DataSettings
from fedstill.data.in_memory import dataset_from
from fedstill.errors import RequestError
from fedstill.execute import execute
from fedstill.models import Model
from fedstill.observe.observer import Observer
from fedstill.observe.progress import ProgressConsole, progress_for
from fedstill.observe.trackers import Observers, tracker
from fedstill.result import Result


def run(
    method: Any = None,
    *,
    data: Any = None,
    data_dir: str | Path | None = None,
    clients: int | None = None,
    partition: str | None = None,
    participation: float | None = None,
    rounds: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    model: str | Model | torch.nn.Module | None = None,
    features: str | torch.nn.Module | None = None,
    engine: str | None = None,
    workers: int | None = None,
    device: str | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    set: Mapping[str, Any] | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    track: str | Sequence[str] = (),
    observer: Observer | None = None,
    progress: bool = True,
) -> Result:
    """Run one federated experiment; the same options as ``fedstill run``.

    Beyond names, ``method`` may be a method object, ``model`` a ``Model`` or an ``nn.Module``, and
    ``features`` a frozen network whose outputs one linear layer is trained on. ``data`` may be a
    ``Dataset`` (see ``fedstill.arrays``), ``(X, y)``, a torch ``Dataset``, a
    pandas frame, a Hugging Face ``Dataset`` or ``DatasetDict``, a dict of ``train`` and ``test`` of
    these, or a list or a dict by name of any of these: one per client. ``set`` takes dotted keys,
    ``config`` a TOML file or a table; ``set`` wins over the options, and they win over ``config``.
    ``progress`` shows the rounds on a terminal, in a notebook, or as lines on standard error;
    ``observer`` gets every event (see :class:`fedstill.Observer`).

    >>> result = fedstill.run("fedavg", rounds=5, set={"method.local_epochs": 2})
    >>> result.summary.accuracy
    """
    if isinstance(data, os.PathLike):
        data = os.fspath(data)
    options = {
        "method": method if isinstance(method, str) else None,
        "data": data if isinstance(data, str) else None,
        "data_dir": None if data_dir is None else str(data_dir),
        "clients": clients,
        "partition": partition,
        "participation": participation,
        "rounds": rounds,
        "epsilon": epsilon,
        "delta": delta,
        "model": model if isinstance(model, str) else None,
        "features": features if isinstance(features, str) else None,
        "engine": engine,
        "workers": workers,
        "device": device,
        "seed": seed,
    }
    given, chosen = requested(options, set, config)
    data = _dataset(data, merged(given, chosen))
    objects = _user_objects(method, data, model, features)
    request = merged(given, objects.request, chosen)
    trackers = [tracker(name) for name in ([track] if isinstance(track, str) else track)]
    shown = progress_for(ProgressConsole(stderr=True)) if progress else None
    watchers = [each for each in (shown, observer) if each is not None]
    try:
        together = Observers(watchers, trackers)
        return execute(request, objects=objects, out=out, resume=resume, observer=together)
    finally:
        if shown is not None:
            shown.stop()


def _dataset(data: Any, request: Mapping[str, Any]) -> Any:
    """Data in memory as a ``Dataset``, read as the request's ``[data]`` section says; a name or a
    ``Dataset`` as it is."""
    if isinstance(data, str | Dataset | None):
        return data
    section = {key: value for key, value in request.get("data", {}).items() if key != "name"}
    return dataset_from(data, convert(section, DataSettings, "data"))


def _user_objects(method: Any, data: Any, model: Any, features: Any) -> UserObjects:
    """Those arguments that are objects and not names, checked."""
    name = path_of(model)
    if not isinstance(model, str | Model | torch.nn.Module | None):
        raise RequestError(f"model: expected a name, a Model or an nn.Module, got {model!r}")
    if not isinstance(features, str | torch.nn.Module | None):
        raise RequestError(f"features: expected a name or an nn.Module, got {features!r}")
    if inspect.isclass(method):
        raise RequestError(f"method: give an object, {method.__name__}(...), or a name")
    if method is not None and not isinstance(method, str):
        check_method(type(method), path_of(method))
    return UserObjects(
        None if isinstance(method, str) else method,
        None if isinstance(data, str) else data,
        None if isinstance(model, str) else model,
        name,
        features if isinstance(features, torch.nn.Module) else None,
    )
