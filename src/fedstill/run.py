"""``fedstill.run``: one experiment from request to result."""

import errno
import inspect
import os
import shlex
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedstill.config import Experiment, check_types, resolve, spelled_out
from fedstill.data import Dataset, load
from fedstill.engine.flower import require_flower
from fedstill.engine.local import Engine, local_engine
from fedstill.errors import BudgetSpent, FedstillError, Interrupted, RequestError, RunError
from fedstill.federation import Federation
from fedstill.models import Model
from fedstill.observe.observer import Observer
from fedstill.privacy.preparing import in_words, prepared, private_defaults
from fedstill.report import write_report
from fedstill.runs.folder import Holdings, RoundMetrics, RunFolder, Summary
from fedstill.runs.provenance import this_session
from fedstill.setup import Setup, prepare, refuse_too_few_replies
from fedstill.tables import Table, as_table, merged, nested, read_toml
from fedstill.types import Params
from fedstill.version import VERSION

MakeEngine = Callable[[Federation], Engine]


@dataclass(frozen=True)
class Result:
    """What a run gave."""

    folder: Path
    summary: Summary
    metrics: list[RoundMetrics]
    model: Model
    params: Params


def run(
    method: Any = None,
    *,
    data: str | Path | Dataset | None = None,
    data_dir: str | Path | None = None,
    clients: int | None = None,
    partition: str | None = None,
    participation: float | None = None,
    rounds: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    model: str | Model | torch.nn.Module | None = None,
    engine: str | None = None,
    workers: int | None = None,
    device: str | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    set: Mapping[str, Any] | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    observer: Observer | None = None,
) -> Result:
    """Run one federated experiment; the same words as ``fedstill run``.

    Beyond names, ``method`` may be a method object, ``data`` a ``Dataset`` (see
    ``fedstill.arrays``) and ``model`` a ``Model`` or an ``nn.Module``. ``set`` takes dotted keys,
    ``config`` a TOML file or a table; ``set`` wins over the words, and they win over ``config``.

    >>> result = fedstill.run("fedavg", rounds=5, set={"method.local_epochs": 2})
    >>> result.summary.accuracy
    """
    if isinstance(data, os.PathLike):
        data = os.fspath(data)
    words = {
        "method": method if isinstance(method, str) else None,
        "model": model if isinstance(model, str) else None,
        "data.name": data if isinstance(data, str) else None,
        "data.dir": None if data_dir is None else str(data_dir),
        "clients": clients,
        "partition": partition,
        "participation": participation,
        "rounds": rounds,
        "privacy.epsilon": epsilon,
        "privacy.delta": delta,
        "engine.name": engine,
        "engine.workers": workers,
        "device": device,
        "seed": seed,
    }
    own = _own_objects(method, data, model)
    table = read_toml(Path(config)) if isinstance(config, str | Path) else dict(config or {})
    check_types(table)
    request = merged(
        spelled_out(table),
        own.request,
        spelled_out(nested({k: v for k, v in words.items() if v is not None})),
        spelled_out(nested(set or {})),
    )
    return execute(request, own=own, out=out, resume=resume, observer=observer)


@dataclass(frozen=True)
class OwnObjects:
    """Objects handed over in Python instead of names; the record keeps the names they go by."""

    method: Any = None
    data: Dataset | None = None
    model: Model | None = None
    model_name: str | None = None

    @property
    def request(self) -> Table:
        """What the objects stand for in the configuration."""
        request: Table = {}
        if self.method is not None:
            settings = as_table(self.method)
            request["method"] = {"name": _path_of(self.method), **settings}
        if self.data is not None:
            request["data"] = {"name": self.data.name}
        if self.model is not None:
            request["model"] = {"name": self.model_name}
        return request


def _own_objects(method: Any, data: Any, model: Any) -> OwnObjects:
    name = _path_of(model)
    if isinstance(model, torch.nn.Module):
        model = Model.from_module(model)
    if not isinstance(data, str | Dataset | None):
        raise RequestError(
            f"data: expected a name, a path or a Dataset, got {type(data).__name__}; "
            "fedstill.arrays(...) makes a Dataset of arrays"
        )
    if not isinstance(model, str | Model | None):
        raise RequestError(f"model: expected a name, a Model or an nn.Module, got {model!r}")
    if inspect.isclass(method):
        raise RequestError(f"method: give an object, {method.__name__}(...), or a name")
    return OwnObjects(
        None if isinstance(method, str) else method,
        None if isinstance(data, str) else data,
        None if isinstance(model, str) else model,
        name,
    )


def _path_of(value: Any) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}"


def execute(
    request: Mapping[str, Any],
    *,
    own: OwnObjects | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    observer: Observer | None = None,
    engine: MakeEngine | None = None,
) -> Result:
    """Run, or go on with, the experiment that a request asks for.

    ``engine`` carries the work if the one that ``engine.name`` names shall not.
    """
    own = own or OwnObjects()
    folder = RunFolder(Path(out)) if out is not None else None
    if resume:
        folder = _begun(folder)
        request = merged(folder.read_config(), request)
    elif folder is not None:
        folder.refuse_unless_free()
    experiment = resolve(request, own.method)
    if engine is None:
        _refuse_unless_possible(experiment, own)
    dataset = own.data or load(experiment.data)
    pooled = bool(getattr(own.method or experiment.build_method(), "pooled", False))
    dataset, partition = prepare(experiment, dataset, pooled=pooled)
    setup = prepared(Setup(experiment, dataset, partition, own.method, own.model))
    experiment = setup.experiment
    refuse_too_few_replies(setup)
    summary = _first_summary(setup)  # builds the model: a wrong setting shows before any file
    setup.method.upload(setup.task)  # so does one of the method that does not fit the model
    if folder is None:
        folder = RunFolder.claim(experiment.method["name"], dataset.name)
    if resume:
        folder.reopen(experiment.table, summary)
    else:
        folder.create(experiment.table, setup.partition)
    if setup.plan is not None:
        setup = replace(setup, ledgers=folder.path / "ledger")
    try:
        make_engine = engine or _engine_by_name
        return _run_in(folder, setup, summary, observer or Observer(), make_engine)
    finally:
        folder.close()


def _engine_by_name(federation: Federation) -> Engine:
    """The engine on this machine that the experiment asks for."""
    setup, scratch = federation.setup, federation.folder.path / ".workers"
    if setup.experiment.engine.name == "flower":
        from fedstill.engine.flower.simulation import SimulationEngine

        return SimulationEngine(setup, scratch)
    return local_engine(setup, setup.clients_a_round, scratch)


def _refuse_unless_possible(experiment: Experiment, own: OwnObjects) -> None:
    """What this machine alone cannot run, said before anything is loaded or written."""
    if experiment.partition == "nodes":
        raise RequestError(
            "partition = 'nodes': the records are on other machines; `fedstill deploy init` "
            "makes an app for them"
        )
    if experiment.engine.name == "flower":
        require_flower(simulation=True)
        if own.method is not None or own.model is not None:
            raise RequestError(
                "engine.name = 'flower': give the method and the model by name, "
                "for other processes have to build them"
            )


def _begun(folder: RunFolder | None) -> RunFolder:
    if folder is None:
        raise RequestError("--resume: name the run's folder with --out")
    if not folder.holds_run:
        raise RequestError(
            f"--resume: there is no run in {folder.path}; drop --resume to begin one"
        )
    return folder


def _first_summary(setup: Setup) -> Summary:
    experiment = setup.experiment
    return Summary(
        method=experiment.method["name"],
        data=setup.dataset.name,
        clients=setup.partition.clients,
        partition=experiment.partition,
        seed=experiment.seed,
        rounds_done=0,
        accuracy=None,
        best_accuracy=None,
        loss=None,
        up_bytes=0,
        down_bytes=0,
        seconds=0.0,
        epsilon=None,
        delta=setup.plan.delta if setup.plan else None,
        status="running",
        model=experiment.model["name"],
        model_size=setup.task.model.size,
        data_sha256=setup.dataset.fingerprint,
        partition_sha256=setup.partition.digest,
        experiment_sha256=setup.digest,
        version=VERSION,
        accountant=setup.plan.accountant if setup.plan else None,
        privacy=in_words(setup.plan),
    )


def _holdings(setup: Setup) -> Holdings:
    data = setup.dataset
    counts = setup.partition.counts(data.train.labels, data.classes)
    return Holdings(list(data.class_names), counts.tolist(), len(data.test))


def _run_in(
    folder: RunFolder, setup: Setup, first: Summary, observer: Observer, make_engine: MakeEngine
) -> Result:
    federation = Federation(setup, folder, observer)

    def conclude(status: str) -> Summary:
        summary = first.after(federation.history, status)
        if setup.plan is not None:  # also what was taken for rounds that were never finished
            summary = replace(summary, epsilon=federation.epsilon)
        folder.write_summary(summary)
        return summary

    with _explained(folder, conclude):
        folder.describe(_holdings(setup), this_session(setup.experiment.device))
        federation.begin()
        rounds, status = setup.experiment.rounds, "done"
        observer.started(folder.path, conclude("running"), rounds, federation.round)
        if note := private_defaults(setup):
            observer.note(note)
        if federation.round < rounds:
            with make_engine(federation) as engine:
                try:
                    while federation.round < rounds:
                        federation.step(engine)
                        conclude("running")
                except BudgetSpent as end:  # as planned: what there is is kept
                    status = "budget spent"
                    observer.note(str(end))
        params = setup.method.params(federation.state)
        folder.write_model(params, {"method": first.method, "model": setup.experiment.model})
        summary = conclude(status)
    _leave_report(folder.path, observer)
    observer.finished(folder.path, summary)
    return Result(folder.path, summary, federation.history, setup.task.model, params)


def _leave_report(folder: Path, observer: Observer) -> None:
    """The page about the run. It is not the result: what goes wrong with it is only told."""
    try:
        write_report(folder)
    except Exception as error:
        observer.note(f"report.html was not written: {error}; try: fedstill report {folder}")


@contextmanager
def _explained(folder: RunFolder, conclude: Callable[[str], Summary]) -> Iterator[None]:
    """Whatever stops a run leaves a summary that says so, and an error that says what to do."""
    again = f"go on with: fedstill run --resume --out {shlex.quote(str(folder.path))}"

    def leave(status: str, log: str | None = None) -> None:
        with suppress(OSError):  # the disk may be full
            conclude(status)
            if log:
                folder.log_error(log)

    try:
        yield
    except KeyboardInterrupt:
        leave("interrupted")
        raise Interrupted(f"interrupted; {again}") from None
    except OSError as error:
        leave("failed")
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "make room, then " if full else ""
        where = f" ({error.filename})" if error.filename else ""
        reason = f"{error.strerror or error}{where}"
        raise RunError(f"{reason}; nothing that was done is lost: {remedy}{again}") from error
    except FedstillError:
        leave("failed")
        raise
    except Exception as error:
        leave("failed", traceback.format_exc())
        log = folder.path / "errors.log"
        raise RunError(f"{type(error).__name__}: {error} (traceback in {log})") from error
