"""A message that is not as declared never reaches the model, and is stored with the reason."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fedstill.build import BuiltExperiment
from fedstill.client import Answer, Work
from fedstill.engine.base import Progress
from fedstill.engine.local import InProcess
from fedstill.errors import RunError
from fedstill.federation import Federation
from fedstill.methods.fedavg import FedAvg
from fedstill.observe.observer import Observer
from fedstill.runs.folder import RunFolder
from fedstill.testing import bits, toy_experiment


class Tampering(InProcess):
    """Client 1's message is garbage, client 2 is never reached."""

    garbage = b"\x00" * 3_000_000

    def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
        for answer in super().exchange(works, progress):
            if answer.client == 1:
                yield replace(answer, message=self.garbage)
            elif answer.client == 2:
                yield Answer(2, error="its node is not connected", asked=False)
            else:
                yield answer


def with_quorum(quorum: float) -> BuiltExperiment:
    built = toy_experiment(FedAvg(), rounds=1)
    return replace(built, experiment=replace(built.experiment, quorum=quorum))


def test_a_refused_message_is_stored(tmp_path: Path) -> None:
    built = with_quorum(0.3)
    federation = Federation(built, RunFolder(tmp_path), Observer())
    federation.begin()
    with Tampering(built) as engine:
        metrics = federation.step(engine)
    assert metrics.clients == [0]
    assert metrics.failed[2] == "its node is not connected"
    assert metrics.failed[1].startswith("refused: 3,000,000 bytes, at most ")
    # Only what was sent is counted: two messages down, of which both were answered.
    honest = len(built.runner.answer(Work(1, 0, *first_message(built)), lambda *_: None).message)
    assert metrics.up_bytes == honest + 3_000_000
    assert metrics.down_bytes == 2 * len(first_message(built)[0])
    kept = tmp_path / "refused" / "round-0001-client-00001"
    note = json.loads(kept.with_suffix(".json").read_text())
    assert f"refused: {note['reason']}" == metrics.failed[1]
    assert note["bytes"] == 3_000_000
    assert len(kept.with_suffix(".bin").read_bytes()) == note["kept"] == 2**20
    assert len(list((tmp_path / "refused").iterdir())) == 2
    # The model is that of a round with client 0 alone.
    alone = Federation(built, RunFolder(tmp_path / "alone"), Observer())
    alone.begin()
    with OnlyFirst(built) as engine:
        alone.step(engine)
    assert bits(alone.state) == bits(federation.state)


class OnlyFirst(InProcess):
    def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
        yield from super().exchange(works[:1], progress)
        yield from (Answer(work.client, error="away", asked=False) for work in works[1:])


def first_message(built: BuiltExperiment) -> tuple[bytes, None]:
    from fedstill import wire
    from fedstill.types import ServerContext

    method, task = built.method, built.task
    state = method.init(ServerContext(task, 0, built.rng.at("round", 0, "server")))
    message = method.broadcast(ServerContext(task, 1, built.rng.at("round", 1, "server")), state)
    return wire.encode(message, method.download(task)), None


def test_below_the_quorum_the_run_stops_and_the_message_is_kept_all_the_same(
    tmp_path: Path,
) -> None:
    built = with_quorum(0.6)
    federation = Federation(built, RunFolder(tmp_path), Observer())
    federation.begin()
    with (
        Tampering(built) as engine,
        pytest.raises(RunError, match="round 1: 1 of 3 clients answered, the quorum is 2"),
    ):
        federation.step(engine)
    assert (tmp_path / "refused" / "round-0001-client-00001.bin").exists()
    assert federation.round == 0
