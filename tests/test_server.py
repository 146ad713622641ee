"""The server's turn: no state that is NaN or infinite, and the right clients left out."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.engine.base import Answer, Progress, Work
from fedstill.engine.local import InProcess
from fedstill.errors import RunError
from fedstill.federation import Federation
from fedstill.methods.fedavg import FedAvg
from fedstill.methods.scaffold import Scaffold
from fedstill.methods.shared.messages import Update, Weights
from fedstill.observe.observer import Observer
from fedstill.runs.folder import RunFolder
from fedstill.server import take_turn
from fedstill.testing import bits, toy_experiment
from fedstill.testing.hostile import HOSTILE, HostileClient, huge
from fedstill.types import AnyMethod, Evaluation, RepliesNeeded, Reply, ServerContext
from fedstill.wire import Schema

HUGE = 3e38


@dataclass(frozen=True)
class Summing(FedAvg):
    """Adds all updates up, and counts how often it is asked."""

    def server(
        self, ctx: ServerContext, state: Weights, replies: Sequence[Reply[Update]]
    ) -> Weights:
        CALLS.append([reply.client for reply in replies])
        total = sum((reply.message.update["w"] for reply in replies), torch.zeros(2))
        return Weights({"w": state.params["w"] + total})


CALLS: list[list[int]] = []
STATE = Weights({"w": torch.zeros(2)})


def replies(*values: float) -> list[Reply[Update]]:
    return [Reply(i, Update({"w": torch.full((2,), v)}, 1)) for i, v in enumerate(values)]


def turn(method: AnyMethod, *values: float) -> tuple[list[int], list[float]]:
    CALLS.clear()
    context = ServerContext(toy_experiment(FedAvg()).task, 4, toy_experiment(FedAvg()).rng)
    found = take_turn(method, context, STATE, replies(*values))
    return [reply.client for reply in found.replies], found.state.params["w"].tolist()


def test_finite_replies_cost_one_attempt() -> None:
    assert turn(Summing(), 1.0, 2.0, 3.0) == ([0, 1, 2], [6.0, 6.0])
    assert len(CALLS) == 1


def test_one_offender_is_found_and_left_out() -> None:
    # Each of them alone is finite; the sum is not. The largest is left out first.
    kept, state = turn(Summing(), 1.0, HUGE, 2e38, 4.0)
    assert kept == [0, 2, 3]
    assert state == pytest.approx([2e38] * 2)
    assert CALLS == [[0, 1, 2, 3], [0, 2, 3]]


def test_several_offenders_are_found() -> None:
    assert turn(Summing(), 1.0, math.nan, 2.0, math.inf, 4.0) == ([0, 2, 4], [7.0, 7.0])
    assert len(CALLS) <= 2 * 5 + 1


@dataclass(frozen=True)
class Strict(Summing):
    """Raises where numbers are not finite, as a decomposition would."""

    def server(self, ctx: ServerContext, state: Weights, replies: Sequence[Reply[Any]]) -> Weights:
        following = super().server(ctx, state, replies)
        if not bool(torch.isfinite(following.params["w"]).all()):
            raise torch.linalg.LinAlgError("the algorithm failed to converge")  # type: ignore[attr-defined]
        return following


def test_an_error_of_arithmetic_is_like_a_state_that_is_not_finite() -> None:
    assert turn(Strict(), 1.0, math.inf, 2.0) == ([0, 2], [3.0, 3.0])


def test_nothing_helps_if_the_training_itself_diverges() -> None:
    with pytest.raises(RunError, match=r"round 4: .*whichever client is left out: the training"):
        turn(Summing(), math.nan, math.nan, math.nan)
    with pytest.raises(RunError, match="the training diverged"):
        turn(Summing(), math.nan)
    with pytest.raises(torch.linalg.LinAlgError, match="failed to converge"):  # type: ignore[attr-defined]
        turn(Strict(), math.nan, math.nan)


def test_an_error_that_is_not_about_numbers_is_not_blamed_on_a_client() -> None:
    class Broken(Summing):
        def server(self, ctx: Any, state: Any, replies: Any) -> Any:
            CALLS.append([])
            raise TypeError("a bug")

    with pytest.raises(TypeError, match="a bug"):
        turn(Broken(), 1.0, 2.0)
    assert len(CALLS) == 1


@dataclass(frozen=True)
class Three(Summing):
    """Needs three replies, as a robust rule does."""

    @property
    def replies_needed(self) -> RepliesNeeded:
        return RepliesNeeded(3)

    def server(self, ctx: ServerContext, state: Weights, replies: Sequence[Reply[Any]]) -> Weights:
        if len(replies) < 3:
            raise RunError("three replies are needed")
        return super().server(ctx, state, replies)


def test_a_method_gets_the_replies_that_it_needs() -> None:
    assert turn(Three(), 1.0, math.nan, 2.0, math.nan, 3.0) == ([0, 2, 4], [6.0, 6.0])
    with pytest.raises(RunError, match="the training diverged"):
        turn(Three(), 1.0, math.nan, 2.0)


# --- in whole rounds -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Unbounded(Scaffold):
    """A user's method that declares no bounds: its messages pass the wire whatever they hold."""

    def upload(self, task: Any) -> Schema[Any]:
        return replace(super().upload(task), norms={})


def begun(method: AnyMethod, folder: Path, quorum: float) -> Federation:
    federation = Federation(
        toy_experiment(method, rounds=3, quorum=quorum), RunFolder(folder), Observer()
    )
    federation.begin()
    return federation


METHOD = Unbounded(server_learning_rate=10.0, learning_rate=0.001)  # 10 x 3e38 / 3 overflows


def test_the_offender_is_reported_stored_and_its_state_dropped(tmp_path: Path) -> None:
    federation = begun(METHOD, tmp_path / "run", 0.5)
    with HostileClient(federation.built, huge) as engine:
        while federation.round < 3:
            metrics = federation.step(engine)
            assert metrics.clients == [0, 2]
            reason = "refused: with its message the server's state is not finite"
            assert metrics.failed == {HOSTILE: reason}
            assert metrics.uploads[HOSTILE] > 0
    assert federation.folder.checkpoints.client(HOSTILE) is None
    assert federation.folder.checkpoints.client(0) is not None
    kept = {path.name for path in (tmp_path / "run" / "refused").iterdir()}
    assert {f"round-000{r}-client-00001.bin" for r in (1, 2, 3)} <= kept
    assert bits(begun(METHOD, tmp_path / "run", 0.5).state) == bits(federation.state)
    # The same bits as a run that the client never answered in.
    alone = begun(METHOD, tmp_path / "alone", 0.5)
    with Silent(alone.built) as silent:
        while alone.round < 3:
            alone.step(silent)
    assert bits(alone.state) == bits(federation.state)


class Silent(InProcess):
    def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
        for answer in super().exchange(works, progress):
            yield Answer(HOSTILE, error="away") if answer.client == HOSTILE else answer


def test_without_the_offender_the_quorum_counts_again(tmp_path: Path) -> None:
    federation = begun(METHOD, tmp_path, 1.0)
    before = bits(federation.state)
    with (
        HostileClient(federation.built, huge) as engine,
        pytest.raises(RunError, match=r"2 of 3 clients answered, the quorum is 3; client 1: refu"),
    ):
        federation.step(engine)
    assert bits(federation.state) == before
    resumed = begun(METHOD, tmp_path, 1.0)
    assert (resumed.round, bits(resumed.state)) == (0, before)
    with InProcess(resumed.built) as honest:
        assert resumed.step(honest).clients == [0, 1, 2]


def test_a_loss_that_is_infinite_is_no_loss(tmp_path: Path) -> None:
    class Odd(FedAvg):
        def evaluate(self, ctx: Any, state: Any, test: Any) -> Evaluation:
            return Evaluation(0.5, math.inf, {"spread": math.nan})

    federation = begun(Odd(), tmp_path, 1.0)
    with InProcess(federation.built) as engine:
        measured = federation.step(engine)
    assert (measured.accuracy, measured.loss, measured.details) == (0.5, None, {})
    assert RunFolder(tmp_path).read_metrics() == [measured]
