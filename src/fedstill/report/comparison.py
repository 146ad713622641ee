"""Several runs side by side: which can be compared, and the numbers of each.

Runs that differ in nothing but the seed are one *entry*: its numbers are means, with their spread.
"""

import json
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedstill.errors import RequestError
from fedstill.report.labels import labels, settings_of
from fedstill.report.source import RunView, open_run
from fedstill.runs.place import nothing_to_compare, refuse_unless_comparable, runs_meant

_ROUNDING = 1e-9  # a mean of 0.65 may come out as a little less


@dataclass(frozen=True)
class Point:
    """An entry after a round: means over its seeds."""

    round: int
    accuracies: tuple[float, ...]  # of the seeds
    up_bytes: float
    seconds: float

    @property
    def accuracy(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def low(self) -> float:
        return min(self.accuracies)

    @property
    def high(self) -> float:
        return max(self.accuracies)


@dataclass(frozen=True)
class Entry:
    """Runs that differ in the seed alone."""

    label: str
    runs: tuple[RunView, ...]

    @property
    def points(self) -> list[Point]:
        """Accuracy by round, in the rounds that every seed has measured."""
        curves = [_curve(run) for run in self.runs]
        rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
        points = []
        for number in rounds:
            accuracies, ups, seconds = zip(*(curve[number] for curve in curves), strict=True)
            cost = statistics.fmean(ups), statistics.fmean(seconds)
            points.append(Point(number, accuracies, *cost))
        return points

    def mean(self, key: str) -> float | None:
        """Mean of a number of the summary over the seeds that have it."""
        values = [run.summary[key] for run in self.runs if run.summary.get(key) is not None]
        return statistics.fmean(values) if values else None

    def spread(self, key: str) -> float | None:
        """Standard deviation over the seeds; ``None`` for a single one."""
        values = [run.summary[key] for run in self.runs if run.summary.get(key) is not None]
        return statistics.stdev(values) if len(values) > 1 else None

    def reached(self, target: float) -> Point | None:
        """The first round whose mean accuracy is at least the target."""
        return next((p for p in self.points if p.accuracy >= target - _ROUNDING), None)


@dataclass(frozen=True)
class Comparison:
    """The entries, the accuracy that costs are counted up to, and what was left out and why."""

    entries: tuple[Entry, ...]
    target: float | None
    left_out: tuple[str, ...]

    @property
    def runs(self) -> int:
        """The number of runs, all seeds counted."""
        return sum(len(entry.runs) for entry in self.entries)

    @property
    def reaching(self) -> int:
        """How many entries reached the target."""
        return sum(e.reached(self.target or 0.0) is not None for e in self.entries)

    @property
    def cheapest(self) -> Entry | None:
        """Which entry uploaded the fewest bytes until the target, if several reached it."""
        if self.target is None:
            return None
        costs = [(p.up_bytes, e) for e in self.entries if (p := e.reached(self.target))]
        return min(costs, key=lambda cost: cost[0])[1] if len(costs) > 1 else None

    @property
    def front(self) -> list[Entry]:
        """The Pareto front: no other entry is better for as few bytes, or as good for fewer."""
        best: list[Entry] = []
        for entry in sorted(self._placed, key=lambda e: (e.mean("up_bytes"), -_accuracy(e))):
            if not best or _accuracy(entry) > _accuracy(best[-1]):
                best.append(entry)
        return best

    @property
    def _placed(self) -> list[Entry]:
        return [e for e in self.entries if e.mean("accuracy") is not None]


def _accuracy(entry: Entry) -> float:
    return entry.mean("accuracy") or 0.0


def compare(folders: Sequence[Path], target: float | None = None) -> Comparison:
    """Read the runs, leave out what cannot be compared (and say so), and gather the seeds.

    A folder that holds run folders stands for all of them.
    """
    refuse_unless_comparable(folders, target)
    runs, left_out = _readable(folders)
    runs, others = _same_data(runs)
    entries = _entries(runs)
    return Comparison(entries, target or _usual_target(entries), (*left_out, *others))


def _readable(folders: Sequence[Path]) -> tuple[list[RunView], list[str]]:
    runs: list[RunView] = []
    left_out: list[str] = []
    for folder in runs_meant(folders):
        try:
            runs.append(open_run(folder))
        except RequestError as error:
            left_out.append(str(error))
    if not runs:
        raise nothing_to_compare(left_out)
    return runs, left_out


def _same_data(runs: Sequence[RunView]) -> tuple[list[RunView], list[str]]:
    """The runs on the data that most of them are on."""

    named: dict[str, Counter[str]] = {}
    for run in runs:
        if digest := run.summary.get("data_sha256"):
            named.setdefault(run.summary["data"], Counter())[digest] += 1

    def data(run: RunView) -> str:
        name, digest = run.summary["data"], run.summary.get("data_sha256")
        if digest is None and name in named and "privacy" in run.config:
            # A private run does not publish the digest of its data: their name must do.
            digest = named[name].most_common(1)[0][0]
        return str(digest or name)

    common, _ = Counter(map(data, runs)).most_common(1)[0]
    name = next(run.summary["data"] for run in runs if data(run) == common)
    others = [
        f"{run.path}: on other data ({run.summary['data']}) than the rest ({name}), so its numbers "
        "cannot be compared with theirs"
        for run in runs
        if data(run) != common
    ]
    return [run for run in runs if data(run) == common], others


def _entries(runs: Sequence[RunView]) -> tuple[Entry, ...]:
    groups: dict[str, list[RunView]] = {}
    for run in runs:
        groups.setdefault(_identity(run), []).append(run)
    names = labels([group[0] for group in groups.values()])
    return tuple(
        Entry(label, tuple(sorted(group, key=lambda r: (r.summary.get("seed") or 0, str(r.path)))))
        for label, group in zip(names, groups.values(), strict=True)
    )


def _identity(run: RunView) -> str:
    return json.dumps(settings_of(run), sort_keys=True, default=str)


def _curve(run: RunView) -> dict[int, tuple[float, float, float]]:
    """Accuracy, bytes so far and seconds so far, by round."""
    curve: dict[int, tuple[float, float, float]] = {}
    up = seconds = 0.0
    for metrics in run.rounds:
        up, seconds = up + metrics.up_bytes, seconds + metrics.seconds
        if metrics.accuracy is not None:
            curve[metrics.round] = metrics.accuracy, up, seconds
    return curve


def _usual_target(entries: Sequence[Entry]) -> float | None:
    """The best accuracy that every entry reached, rounded down to a whole percent."""
    bests = [max((p.accuracy for p in e.points), default=None) for e in entries]
    known = [best for best in bests if best is not None]
    return math.floor((min(known) + _ROUNDING) * 100) / 100 if known else None
