"""One experiment from a resolved request to its folder and result; Python and the command line
both come through here."""

import errno
import shlex
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedstill.build import BuiltExperiment, UserObjects, build_resolved
from fedstill.build.codecs import refuse_codecs_of_images
from fedstill.config import Experiment
from fedstill.config.nested import merged
from fedstill.config.resolve import resolve_with_method
from fedstill.engine.ahead import started_ahead, workers_expected
from fedstill.engine.base import Engine
from fedstill.engine.faults import FaultyEngine, describe
from fedstill.engine.flower import require_flower
from fedstill.engine.local import local_engine
from fedstill.engine.memory import freed_memory_kept
from fedstill.errors import (
    BudgetSpent,
    FedstillError,
    Interrupted,
    RequestError,
    RunError,
)
from fedstill.federation import Federation
from fedstill.forecast import forecast, notes, owners
from fedstill.observe.observer import Observer
from fedstill.report import write_report
from fedstill.result import Inputs, Result
from fedstill.runs.folder import RunFolder
from fedstill.runs.metrics import Holdings, Summary
from fedstill.runs.place import refuse_unless_free, resumable
from fedstill.runs.provenance import refuse_another_kernel, this_session
from fedstill.runs.unpublished import Digests
from fedstill.types import AnyMethod
from fedstill.version import VERSION

MakeEngine = Callable[[Federation], Engine]


def execute(
    request: Mapping[str, Any],
    *,
    objects: UserObjects | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    observer: Observer | None = None,
    engine: MakeEngine | None = None,
) -> Result:
    """Run, or resume, the experiment that a request asks for.

    ``engine`` replaces the engine that ``engine.name`` names.
    """
    objects = objects or UserObjects()
    path = None if out is None else Path(out)
    folder = None if path is None else RunFolder(path)
    if resume:
        folder = RunFolder(resumable(path))
        request = merged(folder.read_config(), request)
    elif path is not None:
        refuse_unless_free(path)
    experiment, method = resolve_with_method(request, objects.method, objects.data)
    if engine is None:
        _refuse_unless_possible(experiment, objects)
    local = engine is None and objects.portable and not method.pooled
    ahead = started_ahead(workers_expected(experiment.table) if local else 0)
    with freed_memory_kept(), ahead:
        return _execute(experiment, method, objects, folder, resume, observer, engine)


def _execute(
    experiment: Experiment,
    method: AnyMethod,
    objects: UserObjects,
    folder: RunFolder | None,
    resume: bool,
    observer: Observer | None,
    engine: MakeEngine | None,
) -> Result:
    built = build_resolved(experiment, method, objects).planned()
    built.refuse_too_few_replies()
    built.refuse_useless_start()
    summary = _first_summary(built)
    digests = Digests(built.dataset.fingerprint, built.partition.digest)
    built.method.upload(
        built.task
    )  # refuses settings that do not fit the model before any file is written
    refuse_codecs_of_images(built)
    if folder is None:
        folder = RunFolder.claim(built.experiment.method["name"], built.dataset.name)
    observer = observer or Observer()
    if resume:
        refuse_another_kernel(folder.path, this_session(built.experiment.device))
        shorter = _shorter(built, folder)
        before = folder.read_config().get("rounds")
        folder.reopen(built.experiment.table, summary, digests, shorter)
        if shorter is not None:
            observer.note(
                f"extended from {before} to {built.experiment.rounds} rounds; what depends on the "
                "number of rounds, such as a learning-rate decay, uses the new one from here on"
            )
    else:
        folder.create(built.experiment.table, built.partition, digests)
    try:
        built = built.with_ledgers(folder.path / "ledger")
        make_engine = engine or _engine_by_name
        return _run_in(folder, built, summary, observer, make_engine)
    finally:
        folder.close()


def _shorter(built: BuiltExperiment, folder: RunFolder) -> Summary | None:
    """The summary of the run as it was begun, if this request extends it by some rounds."""
    rounds = folder.read_config().get("rounds")
    if not isinstance(rounds, int) or built.experiment.rounds <= rounds:
        return None
    if built.plan is not None:
        raise RequestError(
            f"--rounds {built.experiment.rounds}: the noise of this private run was chosen for "
            f"{rounds} rounds; start a new run with another --out"
        )
    return _first_summary(replace(built, experiment=replace(built.experiment, rounds=rounds)))


def _engine_by_name(federation: Federation) -> Engine:
    """The engine on this machine that the experiment asks for."""
    built, scratch = federation.built, federation.folder.workers
    if built.experiment.engine.name == "flower":
        from fedstill.engine.flower.simulation import SimulationEngine

        return SimulationEngine(built, scratch)
    inner, faults = local_engine(built, scratch), built.experiment.faults
    return inner if faults is None else FaultyEngine(inner, faults, built.experiment.engine)


def _refuse_unless_possible(experiment: Experiment, objects: UserObjects) -> None:
    """Refuse what this machine alone cannot run, before anything is loaded or written."""
    if experiment.partition == "nodes":
        raise RequestError(
            "partition = 'nodes': the records are on other machines; `fedstill deploy init` "
            "makes an app for them"
        )
    if experiment.engine.name == "flower":
        require_flower(simulation=True)
        if not objects.portable:
            raise RequestError(
                "engine.name = 'flower': give the method and the model by name, "
                "because other processes build them"
            )


def _first_summary(built: BuiltExperiment) -> Summary:
    experiment = built.experiment
    public = built.plan is None  # sums over the records are not releases
    return Summary(
        method=experiment.method["name"],
        data=built.dataset.name,
        clients=built.partition.clients,
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
        delta=built.plan.delta if built.plan else None,
        status="running",
        model=experiment.model["name"],
        model_size=built.task.model.size,
        data_sha256=built.dataset.fingerprint if public else None,
        partition_sha256=built.partition.digest if public else None,
        experiment_sha256=built.digest,
        version=VERSION,
        accountant=built.plan.accountant if built.plan else None,
        privacy=built.plan.promise if built.plan else None,
        owners=owners(built),
    )


def _holdings(built: BuiltExperiment) -> Holdings | None:
    if built.plan is not None:  # class counts are what a private run protects
        return None
    data = built.dataset
    counts = built.partition.counts(data.train.labels, data.classes)
    return Holdings(list(data.class_names), counts.tolist(), len(data.test))


def _run_in(
    folder: RunFolder,
    built: BuiltExperiment,
    first: Summary,
    observer: Observer,
    make_engine: MakeEngine,
) -> Result:
    federation = Federation(built, folder, observer)

    def conclude(status: str) -> Summary:
        summary = first.after(federation.history, status)
        if built.plan is not None:  # includes accesses of unfinished rounds
            summary = replace(summary, epsilon=federation.epsilon)
        folder.write_summary(summary)
        return summary

    with _explained(folder, conclude):
        folder.describe(_holdings(built), this_session(built.experiment.device))
        federation.begin()
        rounds, status = built.experiment.rounds, "done"
        observer.started(folder.path, conclude("running"), rounds, federation.round)
        for note in notes(built, first=federation.round == 0):
            observer.note(note)
        if (faults := built.experiment.faults) is not None:
            observer.note(describe(faults))
        if federation.round < rounds:
            expected = forecast(built)
            folder.write_forecast(expected)
            observer.forecast(expected)
            with make_engine(federation) as engine:
                try:
                    while federation.round < rounds:
                        took = federation.step(engine).seconds
                        conclude("running")
                        if expected.seconds_per_round is None:
                            expected = replace(expected, seconds_per_round=took)
                            folder.write_forecast(expected)
                except BudgetSpent as end:  # as planned: the model so far is kept
                    status = "budget spent"
                    observer.note(str(end))
        params = built.method.params(federation.state)
        folder.write_model(params, {"method": first.method, "model": built.experiment.model})
        summary = conclude(status)
    _write_report(folder.path, observer)
    observer.finished(folder.path, summary)
    inputs = Inputs.of(built.dataset)
    return Result(folder.path, summary, federation.history, built.model, params, inputs)


def _write_report(folder: Path, observer: Observer) -> None:
    """Write the page about the run. A failure is only noted: the result does not depend on it."""
    try:
        write_report(folder)
    except Exception as error:
        observer.note(f"report.html was not written: {error}; try: fedstill report {folder}")


@contextmanager
def _explained(folder: RunFolder, conclude: Callable[[str], Summary]) -> Iterator[None]:
    """Whatever stops a run leaves a summary that says so, and an error that says what to do."""
    again = f"resume with: fedstill run --resume --out {shlex.quote(str(folder.path))}"

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
        remedy = "free some disk space, then " if full else ""
        where = f" ({error.filename})" if error.filename else ""
        reason = f"{error.strerror or error}{where}"
        raise RunError(f"{reason}; completed rounds are kept: {remedy}{again}") from error
    except FedstillError:
        leave("failed")
        raise
    except Exception as error:
        leave("failed", traceback.format_exc())
        raise RunError(
            f"{type(error).__name__}: {error} (traceback in {folder.error_log})"
        ) from error
