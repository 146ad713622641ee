"""What `fedstill audit` audits: a method on some data, or the configuration of a finished run."""

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import torch

from fedstill.build import BuiltExperiment, build
from fedstill.config.nested import Table, merged
from fedstill.config.registry import find_method
from fedstill.config.request import spelled_out
from fedstill.config.resolve import resolve_with_method
from fedstill.errors import UNREADABLE, RequestError
from fedstill.files import write_atomically
from fedstill.privacy.audit import (
    Audit,
    AuditReport,
    AuditSettings,
    AuditTarget,
    audit,
    membership,
)
from fedstill.privacy.mechanism import DoorTerms
from fedstill.records import Split
from fedstill.runs.folder import RunFolder
from fedstill.types import Task

FILE = "audit.json"
# Of a run's configuration, as many rounds are audited as make this many accesses.
_MOST_ACCESSES = 500


def audit_method(request: Mapping[str, Any], settings: AuditSettings) -> AuditReport:
    """Audit the method of this request, which has a ``[privacy]`` section, with one client."""
    target = method_target(request, settings.canaries)
    private = audit(target, settings)
    open_request = {key: value for key, value in request.items() if key != "privacy"}
    _, method = resolve_with_method(open_request)
    plain = membership(method, target.name, target.task, target.blank, settings)
    return AuditReport(private, plain, _fewer(private, settings))


def method_target(request: Mapping[str, Any], canaries: int) -> AuditTarget:
    """What is audited of a method.

    Unless the request names data or a network, or the method prefers one, the data are the built-in
    digits and the network is one with enough coordinates for all canaries.
    """
    defaults: Table = {"clients": 1, "partition": "iid", "rounds": 1}
    preferred = find_method(spelled_out(request)["method"]["name"]).DEFAULTS
    if not {"data", "model", "features"} & {*request, *preferred}:
        width = canaries // 10 + 1  # features of ten classes
        defaults["model"] = {"name": "mlp", "depth": 1, "width": width}
    # The client's records are the canaries, and their number is public.
    defaults["privacy"] = {"public_size": max(1, canaries // 2)}
    built = build(merged(defaults, request)).planned()
    return _target(built, built.experiment.rounds)


def audit_run(folder: RunFolder, rounds: int | None, settings: AuditSettings) -> AuditReport:
    """Audit the configuration of the run in this folder, and keep the result there."""
    config = folder.read_config()
    if config.get("partition") == "nodes":
        raise RequestError(
            f"{folder.path}: its records are on other machines, and their shapes too; audit the "
            "method on data of the same shape: fedstill audit METHOD --data NAME"
        )
    built = build(config).planned()
    plan = built.plan
    if plan is not None and plan.reproducible:
        raise RequestError(
            f"{folder.path}: its noise comes from the seed (privacy.reproducible), so it promises "
            "nothing that could be audited"
        )
    turns = max(built.turns())
    accesses = plan.accesses if plan else 1
    most = min(turns, max(1, _MOST_ACCESSES // accesses)) if rounds is None else rounds
    number, notes = min(turns, most), []
    if number < turns:
        notes.append(
            f"audited: {number} of the {turns} rounds in which a client takes part, and what these "
            "claim; --rounds sets the number"
        )
    now = datetime.now(UTC).isoformat(timespec="seconds")
    if plan is None:
        task = _task(built, number)
        name = built.experiment.method["name"]
        plain = membership(built.method, name, task, _blank(built), settings)
        result = AuditReport(None, plain, tuple(notes), made=now)
    else:
        private = audit(_target(built, number), settings)
        told = (*notes, *_fewer(private, settings))
        result = AuditReport(private, None, told, made=now)
    text = msgspec.json.format(msgspec.json.encode(result.table), indent=2)
    write_atomically(folder.path / FILE, text + b"\n")
    return result


def kept_audit(folder: Path) -> AuditReport | None:
    """The result that ``audit_run`` kept in a run folder; ``None`` if there is none."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=AuditReport)
    except FileNotFoundError:
        return None
    except (OSError, *UNREADABLE) as error:
        raise RequestError(
            f"{folder / FILE}: cannot be read: {error}; audit again: fedstill audit {folder}"
        ) from error


def _fewer(private: Audit, settings: AuditSettings) -> tuple[str, ...]:
    notes = []
    if private.canaries < settings.canaries:
        notes.append(
            f"{private.canaries} canaries instead of {settings.canaries}: the releases have no "
            "more coordinates; a wider network has (model.width)"
        )
    if private.coverage < 0.995:
        notes.append(
            f"a canary had a coordinate in {private.coverage:.0%} of the releases only, because "
            "some are short; the bound is lower for it"
        )
    return tuple(notes)


def _target(built: BuiltExperiment, rounds: int) -> AuditTarget:
    plan = built.plan
    assert plan is not None
    client = max(range(built.partition.clients), key=lambda c: len(plan.classes[c]))
    terms = DoorTerms(
        rate=plan.rate,
        sigma=plan.sigma,
        clip=plan.clip,
        size=plan.sizes[client],
        classes=torch.tensor(plan.classes[client], dtype=torch.int64),
        counts_released=plan.counts_released,
    )
    return AuditTarget(
        method=built.method,
        name=built.experiment.method["name"],
        task=_task(built, rounds),
        terms=terms,
        blank=_blank(built),
        accesses=plan.accesses,
        delta=plan.delta,
        accountant=plan.accountant,
    )


def _task(built: BuiltExperiment, rounds: int) -> Task:
    """The task with one client and these rounds."""
    return dataclasses.replace(built.task, clients=1, rounds=rounds)


def _blank(built: BuiltExperiment) -> Split:
    """One record of zeros, of the shape that the method sees."""
    train, fixed = built.dataset.train, built.model.fixed is not None
    inputs, labels = (t.new_zeros(1, *t.shape[1:]) for t in (train.inputs, train.labels))
    return Split(torch.zeros(1, *built.task.shape) if fixed else inputs, labels)
