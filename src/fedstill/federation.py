"""The rounds of a federation, the same for every method and every engine."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fedstill import wire
from fedstill.build import BuiltExperiment
from fedstill.defence.judge import Verdict, judge
from fedstill.engine.base import Answer, Engine, Work
from fedstill.engine.threads import threads
from fedstill.errors import BudgetSpent, RunError, WireError
from fedstill.observe.observer import Observer
from fedstill.privacy.ledger import LargestCount
from fedstill.runs.folder import RunFolder
from fedstill.runs.metrics import Confusion, RoundMetrics
from fedstill.runs.sets import SetMetadata
from fedstill.server import Turn, take_turn
from fedstill.steps.scores import Scores, score
from fedstill.types import Evaluation, Reply, ServerContext
from fedstill.wire import tree

MOST_CLASSES = 500  # of a kept confusion matrix
MOST_DOMAINS = 20  # with more groups of test records than this, accuracy is not given for each


@dataclass
class Federation:
    """A federation between two rounds: the server's state and the number of completed rounds.

    The clients' states are on disk, in the checkpoint: memory does not grow with their number.
    """

    built: BuiltExperiment
    folder: RunFolder
    observer: Observer
    round: int = 0
    state: Any = None
    history: list[RoundMetrics] = field(default_factory=list)

    @property
    def pooled(self) -> bool:
        """Whether the method is centralised: nothing is sent, so no bytes are counted."""
        return self.built.method.pooled

    def begin(self) -> None:
        """Start from the newest intact checkpoint, or from the beginning if there is none."""
        found = self.folder.checkpoints.load()
        self.round = 0 if found is None else found[0]
        # After the first round the state is the method's own, whoever made that round.
        initial = self.built.method_in(self.round and 2).init(self._server_context(0))
        # Through the same bytes as a resumed state, so that both start from equal values.
        stored = tree.dump(initial) if found is None else found[1]
        for damaged in self.folder.checkpoints.damaged:
            self.observer.note(
                f"the checkpoint of round {damaged} is damaged: resuming after round {self.round}"
            )
        self.state = tree.load(stored, type(initial), self.built.task.device)
        self.history = self.folder.recover_metrics(self.round)
        if lost := sorted(set(range(1, self.round + 1)) - {m.round for m in self.history}):
            self.observer.note(
                f"metrics.jsonl has no line for round {lost[0]}"
                f"{f' and {len(lost) - 1} others' if lost[1:] else ''}: the totals leave them out"
            )
        self.folder.rewrite_metrics(self.history)

    def step(self, engine: Engine) -> RoundMetrics:
        """One round, recorded and made durable before it counts."""
        with threads(self.built.experiment.engine.server_threads):
            begun = time.monotonic()
            context = self._server_context(self.round + 1)
            works = self._works(context)
            if engine.keeps_ledgers:
                self._count_on_server(works)
            answers = self._collect(engine, works)
            metrics, state = self._update(context, works, answers)
            metrics = replace(metrics, seconds=time.monotonic() - begun)
            self._commit(metrics, state, answers)
            return metrics

    def _works(self, context: ServerContext) -> list[Work]:
        """What the clients sampled for this round are asked to do; the budget allows it."""
        clients = self.built.sample(context.round)
        self._check_budget(clients)
        self.observer.round_started(context.round, clients)
        method = self.built.method_in(context.round)
        message = method.broadcast(context, self.state)
        down = wire.encode(message, method.download(context.task), self.built.experiment.wire.down)
        states = self.folder.checkpoints
        return [Work(context.round, client, down, states.client(client)) for client in clients]

    def _update(
        self, context: ServerContext, works: Sequence[Work], answers: Sequence[Answer]
    ) -> tuple[RoundMetrics, Any]:
        """What the round measured, and the server's next state."""
        method, plan = self.built.method_in(context.round), self.built.plan
        received, failed = self._accept(context.round, answers, works)
        verdicts = self._judge(context, received)
        trusted = self._trusted(received, verdicts)
        turn = take_turn(method, context, self.state, trusted)
        state, replies = turn.state, turn.replies
        failed |= self._left_out(context.round, trusted, turn, answers)
        received = [reply for reply in received if reply.client not in failed]
        self._check_quorum(context.round, len(received), len(works), failed)
        measured = self._evaluate(context, state)
        self._keep_synthetic(context.round, state, received)
        numbers = method.report(state, replies) | measured.details
        sent = 0 if self.pooled else sum(len(a.message) for a in answers)
        asked = {answer.client for answer in answers if answer.asked}
        got = 0 if self.pooled else sum(len(w.message) for w in works if w.client in asked)
        metrics = RoundMetrics(
            round=context.round,
            accuracy=_finite(measured.accuracy),
            loss=_finite(measured.loss),
            up_bytes=sent,
            down_bytes=got,
            seconds=0.0,  # known when the round is over
            epsilon=self.epsilon,
            clients=[reply.client for reply in replies],
            failed=failed,
            # JSON has no NaN: a number that is none is left out, and the line can be read again.
            details={name: value for name, value in numbers.items() if math.isfinite(value)},
            defence=verdicts,
            delta=plan.delta if plan else None,
            accountant=plan.accountant if plan else None,
            uploads={} if self.pooled else {a.client: len(a.message) for a in answers},
        )
        if method is not self.built.method:
            state = self.built.method.init(replace(context, start=method.params(state)))
        return metrics, state

    def _commit(self, metrics: RoundMetrics, state: Any, answers: Sequence[Answer]) -> None:
        """Make the round durable: metrics first, because a resume drops lines after the checkpoint.
        The checkpoint has them too, in case the line is damaged."""
        changed = {
            answer.client: answer.state
            for answer in answers
            if answer.client not in metrics.failed and answer.state is not None
        }
        self.folder.add_metrics(metrics)
        self.folder.checkpoints.save(metrics.round, tree.dump(state), changed, metrics)
        self.round, self.state = metrics.round, state
        self.history.append(metrics)
        self.observer.round_done(metrics)

    @property
    def epsilon(self) -> float | None:
        """What the worst client has spent so far, by its ledger: clients' records are disjoint."""
        plan, largest = self.built.plan, self._largest_count
        return None if plan is None or largest is None else plan.spent(largest.now())

    @cached_property
    def _largest_count(self) -> LargestCount | None:
        plan, folder = self.built.plan, self.built.ledgers
        return None if plan is None or folder is None else plan.largest_count(folder)

    def _check_budget(self, clients: Sequence[int]) -> None:
        """Stop before a round that a client in it cannot complete within its budget."""
        plan, folder = self.built.plan, self.built.ledgers
        if plan is None or folder is None:
            return
        for client in clients:
            ledger = plan.ledger(folder, client)
            if ledger.room < (needed := plan.accesses_in(self.round + 1)):
                raise BudgetSpent(
                    f"round {self.round + 1} would exceed the privacy budget: client {client} has "
                    f"made {ledger.count} of {plan.most} allowed accesses and a round takes "
                    f"{needed}"
                )

    def _count_on_server(self, works: Sequence[Work]) -> None:
        """Count a round that nodes count in their own ledgers, before any work is sent: the server
        never reports less than was spent."""
        plan, folder = self.built.plan, self.built.ledgers
        if plan is not None and folder is not None:
            for work in works:
                ledger = plan.ledger(folder, work.client)
                ledger.reserve(work.round, plan.clip, plan.accesses_in(work.round))

    def _server_context(self, number: int) -> ServerContext:
        rng = self.built.rng.at("round", number, "server")
        return ServerContext(self.built.task, number, rng, self.observer.server_progress)

    def _collect(self, engine: Engine, works: Sequence[Work]) -> list[Answer]:
        """All answers, sorted by client: the order of arrival must not change a bit."""
        answers: list[Answer] = []
        for answer in engine.exchange(works, self.observer.client_progress):
            self.observer.client_done(answer.client, answer.error)
            if answer.traceback:
                self.folder.log_error(f"client {answer.client}\n{answer.traceback}")
            answers.append(answer)
        judged = (self._not_believed(engine, a) if a.spent else a for a in answers)
        return sorted(judged, key=lambda a: a.client)

    def _not_believed(self, engine: Engine, answer: Answer) -> Answer:
        """An answer that says its client's privacy budget is spent: that client's failure.

        A client's word ends no run. Where the server's own ledger agrees, ``BudgetSpent`` ends it
        as planned. Nodes with ledgers of their own are asked only after the server has seen room
        for the whole round in its own: there it never agrees.
        """
        plan, folder = self.built.plan, self.built.ledgers
        if plan is None or folder is None:
            return replace(answer, error="it says its privacy budget is spent; the run has none")
        room = plan.ledger(folder, answer.client).room
        if not engine.keeps_ledgers and room < 1:
            raise BudgetSpent(f"client {answer.client}: {answer.error}")
        reason = answer.error or "its privacy budget is spent"
        return replace(answer, error=f"{reason} (by its own count, not by the server's)")

    def _accept(
        self, number: int, answers: Sequence[Answer], works: Sequence[Work]
    ) -> tuple[list[Reply[Any]], dict[int, str]]:
        """The valid replies, and for every other client the reason why it has none."""
        method, task, experiment = (
            self.built.method_in(number),
            self.built.task,
            self.built.experiment,
        )
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
        self._check_quorum(number, len(replies), len(works), failed)
        return replies, failed

    def _check_quorum(
        self, number: int, replies: int, works: int, failed: Mapping[int, str]
    ) -> None:
        needed = self.built.experiment.needed(works)
        if replies < needed:
            client, reason = next(iter(failed.items()))
            raise RunError(
                f"round {number}: {replies} of {works} clients answered, the quorum is {needed}; "
                f"client {client}: {reason}"
            )

    def _left_out(
        self, number: int, replies: Sequence[Reply[Any]], turn: Turn, answers: Sequence[Answer]
    ) -> dict[int, str]:
        """The clients whose replies would have made the state NaN or infinite."""
        entered = {reply.client for reply in turn.replies}
        reason = "with its message the server's state is not finite"
        out = {r.client: f"refused: {reason}" for r in replies if r.client not in entered}
        for answer in answers:
            if answer.client in out:
                self.folder.keep_refused(number, answer.client, answer.message, reason)
                self.observer.note(f"round {number}: client {answer.client} is left out: {reason}")
        return out

    def _judge(self, context: ServerContext, replies: Sequence[Reply[Any]]) -> dict[int, Verdict]:
        """The defence's verdicts on the clients' sets; none if it is off."""
        settings, method = self.built.experiment.defence, self.built.method_in(context.round)
        if settings.mode == "off" or not method.heeds_trust:
            return {}
        sets = method.synthetic(self.state, replies)
        params, rng = method.params(self.state), context.rng.at("defence")
        verdicts = judge(context.task, params, sets, settings, rng)
        for client, verdict in verdicts.items():
            if verdict.trust < 1:
                how = "dropped" if settings.mode == "drop" else f"trusted {verdict.trust:.0%}"
                self.observer.note(
                    f"round {context.round}: client {client} is {how}: {verdict.reason}"
                )
        return verdicts

    def _trusted(
        self, replies: Sequence[Reply[Any]], verdicts: Mapping[int, Verdict]
    ) -> list[Reply[Any]]:
        """The replies with their trust, without those whose trust is 0."""
        trusts = {client: verdict.trust for client, verdict in verdicts.items()}
        judged = [replace(reply, trust=trusts.get(reply.client, 1.0)) for reply in replies]
        return [reply for reply in judged if reply.trust > 0]

    def _keep_synthetic(self, number: int, state: Any, replies: Sequence[Reply[Any]]) -> None:
        """Keep the synthetic sets of this round, if there are any."""
        sets = self.built.method_in(number).synthetic(state, replies)
        if not sets:
            return
        data, task = self.built.dataset, self.built.task
        metadata = SetMetadata(
            method=self.built.name_in(number),
            round=number,
            data=data.name,
            class_names=data.class_names,
            mean=task.scaling.mean,
            std=task.scaling.std,
            shape=task.shape,
        )
        self.folder.write_synthetic(sets, metadata, self.built.experiment.keep_sets)

    def _evaluate(self, context: ServerContext, state: Any) -> Evaluation:
        """The model's accuracy and loss on the test split, in rounds that are evaluated."""
        experiment, test = self.built.experiment, self.built.test
        method = self.built.method_in(context.round)
        if context.round % experiment.eval_every and context.round != experiment.rounds:
            return Evaluation(None, None)
        evaluation = method.evaluate(context, state, test)
        if evaluation is not None:  # the method is not judged by its weights
            return evaluation
        scores = score(self.built.task, method.params(state), test)
        self._keep_confusion(context.round, scores)
        return Evaluation(scores.accuracy, scores.loss, self._by_domain(scores.by_group))

    def _keep_confusion(self, number: int, scores: Scores) -> None:
        """Keep which classes are taken for which. Its rows are class counts: a private run has
        none; and with thousands of classes it would be larger than the model."""
        if self.built.plan is not None or scores.classes > MOST_CLASSES:
            return
        if (counts := scores.confusion) is not None:
            names = list(self.built.dataset.class_names)
            self.folder.write_confusion(Confusion(number, names, counts.tolist()))

    def _by_domain(self, shares: Mapping[int, float]) -> dict[str, float]:
        """Accuracy on the test records of every domain; writers and speakers are too many."""
        names = self.built.dataset.group_names
        if len(names) > MOST_DOMAINS:
            return {}
        return {f"accuracy/{names[group]}": share for group, share in shares.items()}


def _finite(measured: float | None) -> float | None:
    """What was measured, if it is a number: finite weights may have an infinite loss."""
    return measured if measured is not None and math.isfinite(measured) else None
