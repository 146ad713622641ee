"""The run folder: everything about one run, readable while it runs and after it.

config.toml         everything resolved
partition.safetensors
holdings.json       how many records of each class every client holds
forecast.json       what a round was expected to cost before the first one
confusion.json      which classes the model takes for which, of the test split
sessions.jsonl      one line each time the run was begun or resumed: command, versions, machine
metrics.jsonl       one line per round
summary.json        the run in one object
model.safetensors   the model at the end
synthetic/          synthetic sets, one file per round, where the method makes some
checkpoint/         what --resume starts from
ledger/             with privacy on: every access to each client's records
report.html         the run as a page
nodes/              on Flower's simulation: what the simulated nodes keep to themselves
refused/            only if one was: messages that were not as declared, each with the reason
errors.log          only if something failed: the tracebacks
unpublished/        with privacy on: what must not be published; partition.safetensors and
                    errors.log are there, and there is no holdings.json or confusion.json
"""

import fcntl
import itertools
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from fedstill.config import changed_keys
from fedstill.config.nested import Table, read_toml
from fedstill.data import Partition
from fedstill.errors import UNREADABLE, RequestError, RunError, printable
from fedstill.files import append_line, sweep, write_atomically
from fedstill.records import SyntheticSet
from fedstill.runs import place, unpublished
from fedstill.runs.checkpoint import Checkpoints
from fedstill.runs.forecast import Forecast
from fedstill.runs.metrics import Confusion, Holdings, RoundMetrics, Summary
from fedstill.runs.provenance import Session
from fedstill.runs.sets import SetMetadata, save_sets, set_name
from fedstill.runs.unpublished import Digests
from fedstill.types import Params
from fedstill.wire import tree

_MOST_KEPT = 2**20  # of a refused message or a traceback: enough to see what it was


class RunFolder:
    """One run's folder, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoint")
        self._lock: int | None = None

    @staticmethod
    def claim(method: str, data: str, parent: Path = Path("runs")) -> "RunFolder":
        """The first free ``runs/METHOD-DATA-001``, made at once so that no other run takes it."""
        name = f"{method.rpartition(':')[2]}-{Path(data).stem}".lower()
        stem = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
        for number in itertools.count(1):
            path = parent / f"{stem}-{number:03d}"
            try:
                path.mkdir(parents=True)
                return RunFolder(path)
            except FileExistsError:
                continue
            except OSError as error:
                raise RequestError(f"{path}: {error.strerror}; name a folder by --out") from error
        raise AssertionError("numbers do not end")

    @property
    def holds_run(self) -> bool:
        """Whether a run was begun here."""
        return place.holds_run(self.path)

    @property
    def unpublished(self) -> Path:
        """Where the partition and the errors are: apart, in a private run."""
        apart = self.path / unpublished.FOLDER
        return apart if apart.is_dir() else self.path

    @property
    def partition_file(self) -> Path:
        """The file that says who holds which record."""
        earlier = self.path / unpublished.PARTITION  # of a public run, or an older version
        return earlier if earlier.exists() else self.unpublished / unpublished.PARTITION

    @property
    def error_log(self) -> Path:
        """The file of tracebacks."""
        return self.unpublished / unpublished.ERRORS

    def read_digests(self) -> Digests:
        """What the run was computed from."""
        if found := unpublished.read_digests(self.path):
            return found
        summary = self.read_summary()
        return Digests(summary.data_sha256 or "", summary.partition_sha256 or "")

    def create(self, config: Table, partition: Partition, digests: Digests) -> None:
        """Begin a run here. The configuration comes last: with it the run exists."""
        place.refuse_unless_free(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._acquire()
            self._sweep()
            if "privacy" in config:
                unpublished.set_apart(self.path, digests)
            partition.save(self.partition_file)
            write_atomically(self.path / "config.toml", tomli_w.dumps(config).encode())
        except OSError as error:
            raise RequestError(f"--out {self.path}: {error.strerror}; name another one") from error

    def reopen(
        self, config: Table, summary: Summary, digests: Digests, shorter: Summary | None = None
    ) -> None:
        """Resume the run here, if it is the same experiment on the same data.

        ``shorter``: the summary of the same run with its earlier number of rounds, where it is now
        extended.
        """
        self._acquire()
        try:
            self._check_same(config, summary, digests, shorter)
            if "privacy" in config:
                unpublished.set_apart(self.path, digests)
            if shorter is not None:
                # The configuration comes last: until it is there, the same request extends the run.
                if (self.path / "summary.json").exists():
                    digest = summary.experiment_sha256
                    self.write_summary(replace(self.read_summary(), experiment_sha256=digest))
                write_atomically(self.path / "config.toml", tomli_w.dumps(config).encode())
        except BaseException:
            self.close()
            raise
        self._sweep()

    def _sweep(self) -> None:
        """Remove what killed processes left: nobody else works here while the lock is held."""
        sweep(self.path)
        shutil.rmtree(self.workers, ignore_errors=True)

    @property
    def workers(self) -> Path:
        """Where worker processes find their files while the run is under way."""
        return self.path / ".workers"

    def _check_same(
        self, config: Table, summary: Summary, digests: Digests, shorter: Summary | None
    ) -> None:
        changed = changed_keys(self.read_config(), config)
        if changed and not (shorter is not None and changed == ["rounds"]):
            raise RequestError(
                f"--resume: the run in {self.path} was begun with other settings: "
                f"{', '.join(changed)}; drop these options, or start a new run with another --out"
            )
        saved = Partition.load(self.partition_file)
        before = self.read_summary() if (self.path / "summary.json").exists() else summary
        known = unpublished.read_digests(self.path)
        data = known.data_sha256 if known else before.data_sha256
        same = data in (None, digests.data_sha256)  # None: killed before it was written down
        if saved.digest != digests.partition_sha256 or not same:
            raise RequestError(
                f"--resume: the data are not those that the run in {self.path} was begun with; "
                "bring them back, or start a new run with another --out"
            )
        known_as = {each.experiment_sha256 for each in (summary, shorter) if each is not None}
        if before.experiment_sha256 not in known_as:
            raise RequestError(
                f"--resume: config.toml, the scaling or the network are not those that the run in "
                f"{self.path} was begun with; bring them back, or start a new run with "
                "another --out"
            )

    def read_config(self) -> Table:
        """The resolved configuration of the run."""
        return read_toml(self.path / "config.toml")

    def _acquire(self) -> None:
        try:
            self._lock = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR)
        except OSError as error:
            raise RequestError(f"{self.path}: cannot be written to: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise RequestError(f"{self.path}: another process is working on this run") from error

    def close(self) -> None:
        """Release the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def describe(self, holdings: Holdings | None, session: Session) -> None:
        """Keep which client holds what (no private run does), and what this session computes
        with."""
        if holdings is not None:
            write_atomically(self.path / "holdings.json", msgspec.json.encode(holdings))
        append_line(self.path / "sessions.jsonl", msgspec.json.encode(session))

    def write_forecast(self, forecast: Forecast) -> None:
        """Replace ``forecast.json``."""
        write_atomically(self.path / "forecast.json", msgspec.json.encode(forecast) + b"\n")

    def add_metrics(self, metrics: RoundMetrics) -> None:
        """Append a round's line."""
        append_line(self.path / "metrics.jsonl", msgspec.json.encode(metrics))

    def read_metrics(self, up_to: int | None = None) -> list[RoundMetrics]:
        """The rounds so far; a line that a kill cut short is skipped."""
        path = self.path / "metrics.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        rounds: dict[int, RoundMetrics] = {}
        for line in lines:
            try:
                metrics = msgspec.json.decode(line, type=RoundMetrics)
            except UNREADABLE:
                continue
            if up_to is None or metrics.round <= up_to:
                rounds[metrics.round] = metrics
        return [rounds[r] for r in sorted(rounds)]

    def recover_metrics(self, up_to: int) -> list[RoundMetrics]:
        """The rounds up to the checkpoint, from the lines, and from the checkpoint where a kill or
        a fault of the disk damaged the last ones."""
        rounds = {metrics.round: metrics for metrics in self.read_metrics(up_to)}
        rounds |= self.checkpoints.metrics()
        return [rounds[r] for r in sorted(rounds)]

    def rewrite_metrics(self, metrics: Sequence[RoundMetrics]) -> None:
        """Replace the lines: rounds after the checkpoint will be computed again."""
        lines = b"".join(msgspec.json.encode(m) + b"\n" for m in metrics)
        write_atomically(self.path / "metrics.jsonl", lines)

    def write_summary(self, summary: Summary) -> None:
        """Replace ``summary.json``."""
        text = msgspec.json.format(msgspec.json.encode(summary), indent=2)
        write_atomically(self.path / "summary.json", text + b"\n")

    def read_summary(self) -> Summary:
        """The run in one object."""
        path = self.path / "summary.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=Summary)
        except OSError as error:
            raise RunError(f"{path}: {error.strerror}") from error
        except UNREADABLE as error:
            raise RunError(f"{path}: {error}") from error

    def write_confusion(self, confusion: Confusion) -> None:
        """Replace ``confusion.json``."""
        write_atomically(self.path / "confusion.json", msgspec.json.encode(confusion) + b"\n")

    def write_model(self, params: Params, header: Mapping[str, Any]) -> None:
        """Replace ``model.safetensors``. No time or path goes in: equal runs, equal bytes."""
        write_atomically(self.path / "model.safetensors", tree.pack(params, header))

    def write_synthetic(
        self, sets: Mapping[int, SyntheticSet], metadata: SetMetadata, keep: int | None = None
    ) -> None:
        """Keep a round's synthetic sets, and only the last ``keep`` rounds' where that is set. A
        resumed round writes the same bytes again."""
        folder = self.path / "synthetic"
        save_sets(folder / set_name(metadata.round), sets, metadata)
        if keep is not None:
            for path in sorted(folder.glob("round-*.safetensors"))[:-keep]:
                path.unlink(missing_ok=True)

    def keep_refused(self, round: int, client: int, data: bytes, reason: str) -> None:
        """Keep a message that never reached the model, so that it can be inspected."""
        path = self.path / "refused" / f"round-{round:04d}-client-{client:05d}"
        kept = data[:_MOST_KEPT]
        note = {"reason": reason, "bytes": len(data), "kept": len(kept)}
        write_atomically(path.with_suffix(".bin"), kept)
        write_atomically(path.with_suffix(".json"), msgspec.json.encode(note) + b"\n")

    def log_error(self, text: str) -> None:
        """Keep a traceback, to find the cause."""
        append_line(self.error_log, printable(text[:_MOST_KEPT]).encode())
