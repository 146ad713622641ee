"""A vote of the clients: how good is a candidate on the records that nobody else may see?

One exchange, as in any round: the candidate's weights go down, two numbers come back. Every
message passes the wire, is checked, and counts. A client's part has the form of a method's, so
that the engine's own client runs it: records, or the private door to them, are the engine's to
hand out and not ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fedstill import wire
from fedstill.config import resolve
from fedstill.data import Partition, load
from fedstill.engine.client import ClientRunner, Work
from fedstill.errors import RequestError, RunError
from fedstill.methods.messages import MANY
from fedstill.origin import refuse_other_data
from fedstill.record import RunFolder
from fedstill.setup import Setup
from fedstill.steps.gradient import evaluate
from fedstill.synthetic import StoredSet
from fedstill.tables import Table
from fedstill.types import ClientContext, Params, Task
from fedstill.wire import Schema, params_specs


@dataclass(frozen=True)
class Ballot:
    """Down: a network, as the JSON of its ``[model]`` table, and its weights."""

    model: str
    params: Params


@dataclass(frozen=True)
class Vote:
    """Up: how many of the client's records the candidate gets right, and how many there are."""

    right: int
    count: int


@dataclass(frozen=True)
class Tally:
    """The clients' votes together, and what they cost."""

    right: int
    count: int
    up_bytes: int
    down_bytes: int

    @property
    def accuracy(self) -> float:
        return self.right / self.count


class Ask:
    """What a client does when it is asked: the client's half of a method."""

    def init_client(self, task: Task) -> None:
        return None

    def download(self, task: Task) -> Schema[Ballot]:
        return Schema(Ballot, params_specs(task, "params"))

    def upload(self, task: Task) -> Schema[Vote]:
        return Schema(Vote, numbers={"right": (0, MANY), "count": (1, MANY)})

    def client(self, ctx: ClientContext, message: Ballot, state: None) -> tuple[Vote, None]:
        records = ctx.records
        accuracy, _ = evaluate(ctx.task, message.params, records)
        return Vote(round(accuracy * len(records)), len(records)), None


@dataclass(frozen=True)
class Electorate:
    """The clients of a run."""

    setup: Setup

    @property
    def digest(self) -> str:
        """What decides their votes: the records and who holds which."""
        return f"{self.setup.dataset.fingerprint}:{self.setup.partition.digest}"

    def vote(self, table: Mapping[str, Any], task: Task, params: Params) -> Tally:
        """Ask every client that has records."""
        codecs, ask = self.setup.experiment.wire, Ask()
        ballot = Ballot(msgspec.json.encode(table).decode(), params)
        down = wire.encode(ballot, ask.download(task), codecs.down)
        runner = ClientRunner(
            ask,
            task,
            self.setup.dataset,
            self.setup.partition,
            self.setup.rng.at("vote"),
            codecs.up,
            codecs.down,
        )
        right = count = up_bytes = down_bytes = 0
        for client in self.setup.partition.sizes.nonzero().flatten().tolist():
            answer = runner.answer(Work(1, client, down, None), lambda *_: None)
            if answer.error is not None:
                raise RunError(f"vote: client {client}: {answer.error}")
            vote = wire.decode(answer.message, ask.upload(task), codecs.up)
            if vote.right > vote.count:
                raise RunError(f"vote: client {client} has {vote.right} of {vote.count} right")
            right, count = right + vote.right, count + vote.count
            up_bytes, down_bytes = up_bytes + len(answer.message), down_bytes + len(down)
        return Tally(right, count, up_bytes, down_bytes)


def electorate(run: RunFolder | None, path: Path, stored: StoredSet) -> Electorate:
    """The clients of the run that the set at ``path`` is from, with their records."""
    if run is None:
        raise RequestError(
            f"--objective vote: {path} lies in no run folder, so there are no clients to ask; "
            "take --objective holdout"
        )
    config = run.read_config()
    _refuse_private(run, config)
    experiment = resolve(config)
    dataset = load(experiment.data)
    refuse_other_data(path, stored, dataset)
    partition = Partition.load(run.path / "partition.safetensors")
    if dataset.fingerprint != run.read_summary().data_sha256:
        raise RequestError(
            f"--objective vote: the data are not those that the run in {run.path} had; bring them "
            "back, or take --objective holdout"
        )
    return Electorate(Setup(experiment, dataset, partition))


def _refuse_private(run: RunFolder, config: Table) -> None:
    """An exact count of private records is not sanitised: it would spend what no ledger saw."""
    if config.get("privacy"):
        raise RequestError(
            f"--objective vote: the run in {run.path} has a [privacy] section, and exact votes on "
            "private records would leak; take --objective holdout, which costs no privacy"
        )
