"""``fedstill.audit``: a claimed epsilon, tested by an attack that gives a lower bound."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedstill.config.nested import merged, nested
from fedstill.errors import RequestError
from fedstill.evaluate.audited import audit_method, audit_run
from fedstill.privacy.audit import AuditReport, AuditSettings
from fedstill.runs.folder import RunFolder


def audit(
    what: str | os.PathLike[str],
    *,
    data: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    model: str | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    canaries: int = AuditSettings.canaries,
    rounds: int | None = None,
    q: float | None = None,
    confidence: float = AuditSettings.confidence,
    seed: int = AuditSettings.seed,
    set: Mapping[str, Any] | None = None,
) -> AuditReport:
    """Audit a method by its name, or the configuration of a run; options as ``fedstill audit``.

    A lower bound above the claimed epsilon refutes it; one below proves nothing by itself.

    >>> fedstill.audit("fedavg", epsilon=1.0, canaries=500).refuted
    """
    settings = AuditSettings(canaries, confidence, seed)
    _check(settings, epsilon, delta, rounds, q)
    options = {
        "data.name": data,
        "data.dir": None if data_dir is None else os.fspath(data_dir),
        "model.name": model,
        "rounds": rounds,
        "privacy.epsilon": epsilon,
        "privacy.delta": delta,
        "privacy.sampling_rate": q,
    }
    asked = nested({key: value for key, value in options.items() if value is not None})
    wanted = merged(asked, nested(set or {}))
    name, folder = os.fspath(what), RunFolder(Path(what))
    if folder.holds_run:
        if fixed := sorted(wanted.keys() - {"rounds"}):
            raise RequestError(
                f"audit: {name} is a run, whose configuration is audited as it is; drop the "
                f"options that set {', '.join(fixed)}"
            )
        return audit_run(folder, rounds, settings)
    if Path(name).is_dir() or "/" in name:
        raise RequestError(f"audit: {name}: no run here; name a method or a run folder")
    privacy = {"delta": 1e-5, "sampling_rate": 1.0}
    if "expected_batch" in wanted.get("privacy", {}):
        del privacy["sampling_rate"]
    if "sigma" not in wanted.get("privacy", {}):
        privacy["epsilon"] = 3.0
    base = {"method": {"name": name}, "privacy": privacy}
    return audit_method(merged(base, wanted), settings)


def _check(
    settings: AuditSettings,
    epsilon: float | None,
    delta: float | None,
    rounds: int | None,
    q: float | None,
) -> None:
    ranges = (
        ("--epsilon", epsilon, 0, 100),
        ("--delta", delta, 0, 0.1),
        ("--q", q, 0, 1),
        ("--confidence", settings.confidence, 0.5, 0.9999),
        ("--canaries", settings.canaries, 15, 100_000),
        ("--rounds", rounds, 0, 1000),
    )
    for name, value, low, high in ranges:
        if value is not None and not low < value <= high:
            raise RequestError(
                f"audit: {name} = {value:g}: must be above {low:g}, at most {high:g}"
            )
