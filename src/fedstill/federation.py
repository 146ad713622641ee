"""The rounds of a federation, the same for every method and every engine."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fedstill import tree, wire
from fedstill.engine.client import Answer, Work
from fedstill.engine.local import Engine
from fedstill.engine.threads import threads
from fedstill.errors import RunError, WireError
from fedstill.observer import Observer
from fedstill.record import RoundMetrics, RunFolder
from fedstill.setup import Setup
from fedstill.steps.gradient import evaluate
from fedstill.synthetic import About
from fedstill.types import Reply, ServerContext


@dataclass
class Federation:
    """A federation between two rounds: the server's state and how many rounds lie behind it.

    The clients' states are on disk, in the checkpoint: memory does not grow with their number.
    """

    setup: Setup
    folder: RunFolder
    observer: Observer
    round: int = 0
    state: Any = None
    history: list[RoundMetrics] = field(default_factory=list)

    @property
    def pooled(self) -> bool:
        """A centralised method: there is no network, so nothing on it is counted."""
        return bool(getattr(self.setup.method, "pooled", False))

    @property
    def _with_records(self) -> list[int]:
        return self.setup.with_records

    @property
    def clients_a_round(self) -> int:
        """How many clients are sampled: at least one."""
        share = self.setup.experiment.participation * len(self._with_records)
        return max(1, round(share))

    def begin(self) -> None:
        """Start from the newest whole checkpoint, or from the beginning where there is none."""
        found = self.folder.checkpoints.load()
        initial = self.setup.method.init(self._server_context(0))
        if found is None:
            # Through the same bytes as a resumed state, so that both start from equal values.
            found = 0, tree.dump(initial)
        self.round, stored = found
        for damaged in self.folder.checkpoints.damaged:
            self.observer.note(
                f"the checkpoint of round {damaged} is damaged: going on after round {self.round}"
            )
        self.state = tree.load(stored, type(initial), self.setup.task.device)
        self.history = self.folder.read_metrics(up_to=self.round)
        self.folder.rewrite_metrics(self.history)

    def step(self, engine: Engine) -> RoundMetrics:
        """One round, recorded and made durable before it counts."""
        with threads(self.setup.experiment.engine.server_threads):
            return self._step(engine)

    def _step(self, engine: Engine) -> RoundMetrics:
        begun = time.monotonic()
        number = self.round + 1
        clients = self._sample(number)
        self.observer.round_started(number, clients)
        context = self._server_context(number)
        method, task, codecs = self.setup.method, self.setup.task, self.setup.experiment.wire
        message = method.broadcast(context, self.state)
        down = wire.encode(message, method.download(task), codecs.down)
        states = self.folder.checkpoints
        works = [Work(number, client, down, states.client(client)) for client in clients]
        answers = self._collect(engine, works)
        replies, failed = self._accept(number, answers, clients)
        state = method.server(context, self.state, replies)
        accuracy, loss = self._evaluate(number, state)
        self._keep_synthetic(number, state, replies)
        report = getattr(method, "report", None)  # a method may have numbers of its own
        metrics = RoundMetrics(
            round=number,
            accuracy=accuracy,
            loss=loss,
            up_bytes=0 if self.pooled else sum(len(a.message) for a in answers),
            down_bytes=0 if self.pooled else len(down) * sum(a.asked for a in answers),
            seconds=time.monotonic() - begun,
            epsilon=None,
            clients=[reply.client for reply in replies],
            failed=failed,
            details=report(state, replies) if report else {},
        )
        self._commit(metrics, state, answers)
        return metrics

    def _commit(self, metrics: RoundMetrics, state: Any, answers: Sequence[Answer]) -> None:
        """Make the round durable: metrics first, for lines after the checkpoint are dropped on
        resume, but a missing one is not made up."""
        changed = {
            answer.client: answer.state
            for answer in answers
            if answer.client in metrics.clients and answer.state is not None
        }
        self.folder.add_metrics(metrics)
        self.folder.checkpoints.save(metrics.round, tree.dump(state), changed)
        self.round, self.state = metrics.round, state
        self.history.append(metrics)
        self.observer.round_done(metrics)

    def _sample(self, number: int) -> list[int]:
        """Clients of this round, by a stream of its own; one without records is never asked."""
        candidates = self._with_records
        generator = self.setup.rng.at("round", number, "sampling").numpy()
        chosen = generator.choice(len(candidates), self.clients_a_round, replace=False)
        return sorted(candidates[i] for i in chosen)

    def _server_context(self, number: int) -> ServerContext:
        rng = self.setup.rng.at("round", number, "server")
        return ServerContext(self.setup.task, number, rng, self.observer.server_progress)

    def _collect(self, engine: Engine, works: Sequence[Work]) -> list[Answer]:
        """All answers, sorted by client: the order of arrival must not change a bit."""
        answers: list[Answer] = []
        for answer in engine.exchange(works, self.observer.client_progress):
            self.observer.client_done(answer.client, answer.error)
            if answer.traceback:
                self.folder.log_error(f"client {answer.client}\n{answer.traceback}")
            answers.append(answer)
        return sorted(answers, key=lambda a: a.client)

    def _accept(
        self, number: int, answers: Sequence[Answer], clients: Sequence[int]
    ) -> tuple[list[Reply[Any]], dict[int, str]]:
        """The replies that are as declared, and the reasons why the others are not here."""
        method, task, experiment = self.setup.method, self.setup.task, self.setup.experiment
        schema, codec = method.upload(task), experiment.wire.up
        replies: list[Reply[Any]] = []
        failed: dict[int, str] = {}
        for answer in answers:
            if answer.error is not None:
                failed[answer.client] = answer.error
                continue
            try:
                message = wire.decode(answer.message, schema, codec, task.device)
                replies.append(Reply(answer.client, message))
            except WireError as error:
                failed[answer.client] = f"refused: {error}"
                self.folder.keep_refused(number, answer.client, answer.message, str(error))
        needed = experiment.needed(len(clients))
        if len(replies) < needed:
            client, reason = next(iter(failed.items()))
            raise RunError(
                f"round {number}: {len(replies)} of {len(clients)} clients answered, the "
                f"quorum is {needed}; client {client}: {reason}"
            )
        return replies, failed

    def _keep_synthetic(self, number: int, state: Any, replies: Sequence[Reply[Any]]) -> None:
        """Keep the clients' synthetic sets, if the method makes such."""
        synthetic = getattr(self.setup.method, "synthetic", None)
        if synthetic is None:
            return
        data = self.setup.dataset
        about = About(
            method=self.setup.experiment.method["name"],
            round=number,
            data=data.name,
            class_names=data.class_names,
            mean=data.scaling.mean,
            std=data.scaling.std,
            shape=data.shape,
        )
        self.folder.write_synthetic(synthetic(state, replies), about)

    def _evaluate(self, number: int, state: Any) -> tuple[float | None, float | None]:
        """Accuracy and loss on the test split, in the rounds that have an evaluation."""
        experiment = self.setup.experiment
        if number % experiment.eval_every and number != experiment.rounds:
            return None, None
        with torch.no_grad():
            return evaluate(self.setup.task, self.setup.method.params(state), self.setup.test)
