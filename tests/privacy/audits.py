"""Audits of small targets, with noise that can be repeated: a test must not fail by chance."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from fedstill.methods import METHODS
from fedstill.models import MLP
from fedstill.privacy.accounting import sigma_for
from fedstill.privacy.audit import Audit, AuditSettings, AuditTarget, audit
from fedstill.privacy.mechanism import DoorTerms, PrivateRecords
from fedstill.privacy.randomness import Replayed
from fedstill.records import Split
from fedstill.rng import Rng
from fedstill.scaling import Scaling
from fedstill.types import AnyMethod, Task
from tests.methods.small import SMALL, SMALL_PRIVATE

SHAPE, CLASSES = (1, 8, 8), 10
BLANK = Split(torch.zeros(1, *SHAPE, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
SETTINGS = AuditSettings(canaries=2000)


def small(name: str) -> AnyMethod:
    """The private form of a method, with settings that make it fast."""
    cls = METHODS[name]
    settings = {**SMALL.get(name, {}), **SMALL_PRIVATE.get(name, {})}
    method: AnyMethod = cls(**{**cls.PRIVATE_DEFAULTS, **settings})
    return method


def small_task(rounds: int = 1, width: int = 200, features: bool = False) -> Task:
    if features:  # 200 of ten classes: room for 2,000 canaries in every release
        return Task(MLP((200,), CLASSES, depth=0), (200,), CLASSES, 1, rounds, Scaling((), ()))
    scaling = Scaling((0.5,), (0.5,))
    return Task(MLP(SHAPE, CLASSES, width, depth=1), SHAPE, CLASSES, 1, rounds, scaling)


def target(
    method: AnyMethod,
    epsilon: float = 3.0,
    rate: float = 1.0,
    rounds: int = 1,
    width: int = 200,
    **terms: Any,
) -> AuditTarget:
    """What is audited where ``epsilon`` is claimed."""
    form = method.private_form(rate)
    assert form is not None
    sigma = sigma_for(epsilon, rounds * form.accesses, rate, 1e-5)
    features = "model" in method.DEFAULTS
    given = DoorTerms(rate, sigma, 1.0, 1000, torch.arange(CLASSES))
    return AuditTarget(
        method,
        type(method).__name__,
        small_task(rounds, width, features),
        dataclasses.replace(given, **terms),
        Split(torch.zeros(1, 200), BLANK.labels) if features else BLANK,
        form.accesses,
        1e-5,
    )


def replayed(kind: type[PrivateRecords] = PrivateRecords, seed: int = 0) -> Callable[..., Any]:
    """A door of this kind whose noise comes from a seed."""

    def opened(records: Any, ledger: Any, _: Any, terms: Any, round: int, chunk: int) -> Any:
        noise = Replayed(Rng(seed).at("noise", round))
        return kind(records, ledger, noise, terms, round, chunk)

    return opened


def audited(
    method: AnyMethod,
    kind: type[PrivateRecords] = PrivateRecords,
    settings: AuditSettings = SETTINGS,
    **options: Any,
) -> Audit:
    return audit(target(method, **options), settings, replayed(kind))
