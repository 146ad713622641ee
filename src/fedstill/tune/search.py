"""The search itself: draw a candidate, judge it, record it in the study; several at once.

Only this process touches the study and draws candidates. Judges get a candidate and report after
every epoch; they run in this process, or in workers that get names, paths and plain values.
"""

import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from fedstill.config.nested import Table, as_table
from fedstill.engine.processes import WorkerProcess
from fedstill.engine.threads import threads
from fedstill.errors import RequestError, RunError
from fedstill.tune.objective import Judge, ShouldContinue, Verdict
from fedstill.tune.space import Candidate, Space, suggest
from fedstill.tune.study import sampler_for

if TYPE_CHECKING:
    from optuna import Study, Trial


class Judges(Protocol):
    """Judges one candidate at a time, in this process or in a worker."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def judge(self, candidate: Candidate, should_continue: ShouldContinue) -> Verdict | None: ...


class InProcess:
    """A judge in this process."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def judge(self, candidate: Candidate, should_continue: ShouldContinue) -> Verdict | None:
        try:
            with threads(1):  # their number affects the last bits
                return self._judge.judge(candidate, should_continue)
        except RuntimeError as error:  # PyTorch's: out of memory, for one
            raise RunError(f"{type(error).__name__}: {error}") from error


class InWorker:
    """A judge in a worker process, built there from ``header`` (see ``tune.worker``)."""

    def __init__(self, header: Table) -> None:
        self._header = header

    def __enter__(self) -> Self:
        self._process = WorkerProcess("fedstill.tune.worker", self._header)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.close()

    def judge(self, candidate: Candidate, should_continue: ShouldContinue) -> Verdict | None:
        self._process.send({"candidate": as_table(candidate)})
        while True:
            reply, _ = self._process.receive()
            if "epoch" in reply:
                self._process.send({"go_on": should_continue(reply["epoch"], reply["accuracy"])})
            elif "refused" in reply:
                raise RequestError(reply["refused"])
            elif "failed" in reply:
                raise RunError(reply["failed"])
            else:
                return Verdict(**reply["verdict"]) if reply["verdict"] else None


@dataclass(frozen=True)
class FinishedTrial:
    """A finished trial, as it is shown."""

    number: int
    finished: int  # number of finished trials
    trials: int  # number of requested trials
    state: str  # done, pruned or failed
    value: float | None
    best: float | None
    candidate: Candidate
    seconds: float
    note: str = ""


class Watcher:
    """Receives the progress of a search. The default does nothing."""

    def epoch(self, number: int, epoch: int, epochs: int, accuracy: float) -> None:
        """A trial has trained for another epoch."""

    def finished(self, trial: FinishedTrial) -> None:
        """A trial is finished."""


@dataclass
class SearchLoop:
    """Runs trials until there are enough, one at a time per judge."""

    study: "Study"
    space: Space
    sampler: str
    seed: int
    trials: int
    watcher: Watcher

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._error: BaseException | None = None
        self._under_way = 0

    def run(self, judges: Sequence[Judges]) -> None:
        """Run until the study has the requested number of finished trials."""
        servers = [
            threading.Thread(target=self._serve, args=(judge,), kwargs={"parallel": True})
            for judge in judges
        ]
        try:
            with ExitStack() as stack:
                for judge in judges:
                    stack.enter_context(judge)
                if len(judges) == 1:
                    self._serve(judges[0], parallel=False)
                else:
                    self._watch(servers)
        finally:  # the judges are gone: threads that waited for one end now
            for server in filter(threading.Thread.is_alive, servers):
                server.join()
        if self._error is not None:
            raise self._error

    def _watch(self, servers: Sequence[threading.Thread]) -> None:
        try:
            for server in servers:
                server.start()
            for server in servers:
                while server.is_alive():
                    server.join(timeout=0.2)  # so that Ctrl-C is handled
        except BaseException as error:
            self._error = error
            raise

    def _serve(self, judge: Judges, *, parallel: bool) -> None:
        """One trial after another with this judge."""
        try:
            while (drawn := self._draw(parallel=parallel)) is not None:
                try:
                    self._try(judge, *drawn)
                finally:
                    with self._lock:
                        self._under_way -= 1
        except Exception as error:
            self._error = error  # the others stop before their next trial

    def _draw(self, *, parallel: bool) -> "tuple[Trial, Candidate] | None":
        with self._lock:
            if self._error is not None or self.finished + self._under_way >= self.trials:
                return None
            waiting = [t.number for t in self.study.trials if t.state.name == "WAITING"]
            number = min(waiting, default=len(self.study.trials))
            self.study.sampler = sampler_for(self.sampler, self.seed, number, parallel=parallel)
            with warnings.catch_warnings():  # Optuna's, on experimental features
                warnings.simplefilter("ignore")
                trial = self.study.ask()
                candidate = suggest(trial, self.space)
            self._under_way += 1
            return trial, candidate

    @property
    def finished(self) -> int:
        """The number of trials that have ended, complete or not."""
        return sum(trial.state.is_finished() for trial in self.study.get_trials(deepcopy=False))

    def _try(self, judge: Judges, trial: "Trial", candidate: Candidate) -> None:
        from optuna.trial import TrialState

        begun = time.monotonic()

        def should_continue(epoch: int, accuracy: float) -> bool:
            self.watcher.epoch(trial.number, epoch, candidate.reports, accuracy)
            with self._lock, warnings.catch_warnings():
                # A trial that was started before a kill reports its epochs again.
                warnings.simplefilter("ignore")
                trial.report(accuracy, epoch)
                return self._error is None and not trial.should_prune()

        note = ""
        try:
            verdict = judge.judge(candidate, should_continue)
        except RunError as error:  # this candidate failed, e.g. out of memory; others may not
            verdict, note = None, str(error)
        with self._lock:
            if self._error is not None:
                return  # the trial stays open and starts again when the study is resumed
            state, value = TrialState.PRUNED, None
            if note:
                state = TrialState.FAIL
            elif verdict is not None:
                state, value = TrialState.COMPLETE, verdict.value
                for key, number in _costs(verdict).items():
                    trial.set_user_attr(key, number)
            self.study.tell(trial, value, state)
            self.watcher.finished(
                self._finished_trial(trial.number, state.name, value, candidate, begun, note)
            )

    def _finished_trial(
        self,
        number: int,
        state: str,
        value: float | None,
        candidate: Candidate,
        begun: float,
        note: str,
    ) -> FinishedTrial:
        values = [
            t.value for t in self.study.get_trials(deepcopy=False) if t.state.name == "COMPLETE"
        ]
        return FinishedTrial(
            number,
            self.finished,
            self.trials,
            {"COMPLETE": "done", "PRUNED": "pruned"}.get(state, "failed"),
            value,
            max((v for v in values if v is not None), default=None),
            candidate,
            time.monotonic() - begun,
            note,
        )


def _costs(verdict: Verdict) -> dict[str, Any]:
    return {
        "held_out": verdict.held_out,
        "weights": verdict.weights,
        "up_bytes": verdict.up_bytes,
        "down_bytes": verdict.down_bytes,
    }
