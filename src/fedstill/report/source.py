"""A run folder as it is found: whole, half-written, or from another version.

Reading is lenient: what is there is shown, and ``notes`` say what is missing or cannot be read.
Only a folder that holds no run at all is refused.
"""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints
from urllib.parse import quote

import msgspec

from fedstill.config.nested import Table, flat, read_toml
from fedstill.errors import UNREADABLE, RequestError
from fedstill.runs.forecast import Forecast
from fedstill.runs.metrics import Confusion, Holdings, RoundMetrics, Summary
from fedstill.runs.place import refuse_unless_run
from fedstill.runs.provenance import Session, sessions_in
from fedstill.version import VERSION

T = TypeVar("T")

_LARGEST = 2**63  # (and no comparison with NaN is true)


@dataclass(frozen=True)
class RunView:
    """Everything that a page shows about a run."""

    path: Path
    config: Table
    summary: Table  # the keys that ``Summary`` has, where they are known
    rounds: list[RoundMetrics]
    holdings: Holdings | None
    confusion: Confusion | None
    forecast: Forecast | None
    sessions: list[Session]
    synthetic: list[Path]
    notes: list[str]

    @property
    def measured(self) -> list[RoundMetrics]:
        """The rounds with an evaluation."""
        return [m for m in self.rounds if m.accuracy is not None]

    @property
    def status(self) -> str:
        return str(self.summary.get("status", "unfinished"))

    @property
    def planned(self) -> int:
        """The number of rounds that were asked for."""
        rounds = self.config.get("rounds")
        return rounds if isinstance(rounds, int) else len(self.rounds)

    @property
    def title(self) -> str:
        return f"{self.summary['method']} on {self.summary['data']}"


def open_run(path: Path) -> RunView:
    """The run in this folder."""
    refuse_unless_run(path)
    notes: list[str] = []
    config = _config(path, notes)
    summary = _summary(path, notes)
    rounds = _rounds(path, notes)
    return RunView(
        path=path,
        config=config or {},
        summary=_known(_publishable(summary or {}, config or {}), config or {}, rounds),
        rounds=rounds,
        holdings=_holdings(path, config or {}, notes),
        confusion=_confusion(path, config or {}, notes),
        forecast=_forecast(path, notes),
        sessions=sessions_in(path),
        synthetic=sorted((path / "synthetic").glob("round-*.safetensors")),
        notes=notes + _newer(summary or {}),
    )


def report_link(run: RunView, beside: Path) -> str | None:
    """The way from a page in the folder ``beside`` to the run's report, where there is one."""
    report = run.path / "report.html"
    if not report.is_file():
        return None
    way = os.path.relpath(report.resolve(), beside.resolve())
    return "./" + quote(way.replace(os.sep, "/"))  # "./": a folder called "javascript:" is a folder


def tag_of(path: Path) -> str:
    """Changes when a file that the run's page is made from does."""
    patterns = ("config.toml", "*.json*", "synthetic/round-*")
    files = sorted(file for pattern in patterns for file in path.glob(pattern))
    facts = [(file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _config(path: Path, notes: list[str]) -> Table | None:
    file = path / "config.toml"
    if not file.exists():
        notes.append("config.toml is missing: the settings are not known")
        return None
    try:
        return read_toml(file)
    except RequestError as error:
        notes.append(f"config.toml cannot be read: {str(error).removeprefix(f'{file}: ')}")
        return {}


def _summary(path: Path, notes: list[str]) -> Table | None:
    file = path / "summary.json"
    if not file.exists():
        notes.append("summary.json is missing: the run was stopped before its first round ended")
        return None
    found = _decoded(file, dict[str, Any], notes) or {}
    kinds = get_type_hints(Summary)
    return {key: value for key, value in found.items() if _is(value, kinds.get(key))}


def _publishable(summary: Table, config: Table) -> Table:
    """Without the sums over records that private runs of earlier versions have."""
    if "privacy" not in config:
        return summary
    return {k: v for k, v in summary.items() if k not in ("data_sha256", "partition_sha256")}


def _is(value: Any, kind: Any) -> bool:
    """Whether a value is of the kind that its name promises; unknown names are skipped."""
    try:
        msgspec.convert(value, kind)
    except UNREADABLE:
        return False
    return kind is not None and _drawable(value)


def _drawable(value: Any) -> bool:
    """Whether every number in it is one that can be added up and drawn."""
    if isinstance(value, dict):
        return all(_drawable(item) for pair in value.items() for item in pair)
    if isinstance(value, list):
        return all(map(_drawable, value))
    return not isinstance(value, int | float) or abs(value) < _LARGEST


def _rounds(path: Path, notes: list[str]) -> list[RoundMetrics]:
    file = path / "metrics.jsonl"
    lines = file.read_bytes().splitlines() if file.exists() else []
    rounds: dict[int, RoundMetrics] = {}
    for line in lines:
        metrics = _metrics(line)
        if metrics is not None:
            rounds[metrics.round] = metrics
    if len(lines) > len(rounds):
        notes.append(
            f"metrics.jsonl: {len(lines) - len(rounds)} of {len(lines)} lines cannot be read or "
            "are repeated, and are left out"
        )
    return [rounds[number] for number in sorted(rounds)]


def _metrics(line: bytes) -> RoundMetrics | None:
    """A line of ``metrics.jsonl``. Details that were no numbers (NaN is written as null) are
    left out; other lines that cannot be read are skipped."""
    try:
        table = msgspec.json.decode(line, type=dict[str, Any])
        details = table.get("details") or {}
        table["details"] = {k: v for k, v in details.items() if isinstance(v, int | float)}
        metrics = msgspec.convert(table, RoundMetrics, strict=False)
        return metrics if _drawable(msgspec.to_builtins(metrics)) else None
    except (AttributeError, *UNREADABLE):
        return None


def _known(summary: Table, config: Table, rounds: list[RoundMetrics]) -> Table:
    """The summary, its gaps filled from the settings and the rounds."""
    settings = flat(config)
    measured = [m for m in rounds if m.accuracy is not None]
    found = {
        "method": settings.get("method.name", "unknown method"),
        "data": Path(str(settings.get("data.name", "unknown data"))).name,
        "clients": settings.get("clients"),
        "partition": settings.get("partition"),
        "seed": settings.get("seed"),
        "model": settings.get("model.name"),
        "rounds_done": rounds[-1].round if rounds else 0,
        "accuracy": measured[-1].accuracy if measured else None,
        "best_accuracy": max((m.accuracy or 0.0 for m in measured), default=None),
        "loss": measured[-1].loss if measured else None,
        "up_bytes": sum(m.up_bytes for m in rounds),
        "down_bytes": sum(m.down_bytes for m in rounds),
        "seconds": sum(m.seconds for m in rounds),
        "epsilon": rounds[-1].epsilon if rounds else None,
    }
    # The rounds are newer than the summary during a run, and the same when it is over.
    newer = ("rounds_done", "accuracy", "best_accuracy", "up_bytes", "down_bytes", "seconds")
    return {**found, **summary, **({key: found[key] for key in newer} if rounds else {})}


def _forecast(path: Path, notes: list[str]) -> Forecast | None:
    found = _decoded(path / "forecast.json", Forecast, notes)
    return found if _drawable(msgspec.to_builtins(found)) else None


def _holdings(path: Path, config: Table, notes: list[str]) -> Holdings | None:
    if "privacy" in config:  # a page is for sharing, and class counts are what is protected
        notes.append("who held what is not shown: with privacy on, class counts are private")
        return None
    return _decoded(path / "holdings.json", Holdings, notes)


def _confusion(path: Path, config: Table, notes: list[str]) -> Confusion | None:
    if "privacy" in config:  # its rows are class counts: no private run has one
        return None
    return _decoded(path / "confusion.json", Confusion, notes)


def _decoded(path: Path, kind: type[T], notes: list[str]) -> T | None:
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, *UNREADABLE) as error:
        notes.append(f"{path.name} cannot be read: {error}")
        return None


def _newer(summary: Table) -> list[str]:
    theirs = str(summary.get("version", VERSION))
    if _numbers(theirs) <= _numbers(VERSION):
        return []
    return [
        f"this run was made by fedstill {theirs} and is read by {VERSION}, which is older: some of "
        "it may not be shown"
    ]


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]
