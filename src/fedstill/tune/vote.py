"""A vote of the clients: how good is a candidate on the records that nobody else may see?

One exchange, as in any round: the candidate's weights go down, two numbers come back. Every
message passes the wire, is checked, and counts. A client's part has the form of a method's, so
that the engines' client runs it: records, or the private door to them, are the engine's to
hand out and not ours.

In a private run a vote is one access to a client's records more, counted in the run's own ledgers:
a Poisson sample, 1 for every record that the candidate gets right, so a sum that one record moves
by at most 1, and noise of sigma on it. The share is taken of the sample's expected size, which is
public.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from fedstill import wire
from fedstill.build import BuiltExperiment, build
from fedstill.client import ClientRunner, Work
from fedstill.data import Partition
from fedstill.errors import RequestError, RunError
from fedstill.methods.shared.messages import MANY
from fedstill.records import Records
from fedstill.runs.find import refuse_other_data
from fedstill.runs.folder import RunFolder
from fedstill.runs.sets import StoredSet
from fedstill.steps.scores import score
from fedstill.types import ClientContext, Params, Task
from fedstill.wire import Schema, params_specs

_NO_ROUND = 0  # as it stands in a ledger: a vote belongs to none


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
class NoisyVote:
    """The same through the private door: a noisy sum over a sample, and its expected size."""

    right: float
    count: float


@dataclass(frozen=True)
class Tally:
    """The clients' votes together, and what they cost."""

    right: float
    count: float
    up_bytes: int
    down_bytes: int

    @property
    def accuracy(self) -> float:
        return self.right / self.count


@dataclass(frozen=True)
class Ask:
    """What a client does when it is asked: the client's half of a method."""

    private: bool = False

    def init_client(self, task: Task) -> None:
        return None

    def download(self, task: Task) -> Schema[Ballot]:
        return Schema(Ballot, params_specs(task, "params"))

    def upload(self, task: Task) -> Schema[Any]:
        if self.private:
            return Schema(NoisyVote, numbers={"right": (-MANY, MANY), "count": (0, MANY)})
        return Schema(Vote, numbers={"right": (0, MANY), "count": (1, MANY)})

    def client(
        self, ctx: ClientContext, message: Ballot, state: None
    ) -> tuple[Vote | NoisyVote, None]:
        if self.private:
            return _noisy_vote(ctx, message.params), None
        records = ctx.records
        accuracy = score(ctx.task, message.params, records).accuracy
        return Vote(round(accuracy * len(records)), len(records)), None


def _noisy_vote(ctx: ClientContext, params: Params) -> NoisyVote:
    door = ctx.private
    assert door is not None

    def hit(records: Records) -> Params:
        x, y = records.take(torch.arange(len(records)))
        with torch.no_grad():
            right = ctx.task.model.inference(params, x)[-1].argmax(1) == y
        return {"right": right.double()[:, None]}

    right = door.noisy_sum(hit, clip=1.0)["right"]
    return NoisyVote(float(right), door.expected_batch)


@dataclass(frozen=True)
class Voters:
    """The clients of a run."""

    built: BuiltExperiment

    @property
    def digest(self) -> str:
        """What decides their votes: the records and who holds which."""
        return f"{self.built.dataset.fingerprint}:{self.built.partition.digest}"

    @property
    def left(self) -> float:
        """How many more votes the privacy budget allows; no end of them without one."""
        plan, folder = self.built.plan, self.built.ledgers
        if plan is None or folder is None:
            return math.inf
        return min(plan.ledger(folder, client).room for client in self.built.candidates)

    @property
    def epsilon(self) -> float | None:
        """What the run and all votes so far have cost, where privacy is on."""
        plan, folder = self.built.plan, self.built.ledgers
        if plan is None or folder is None:
            return None
        return plan.spent(max(plan.ledger(folder, c).count for c in self.built.candidates))

    def vote(self, table: Mapping[str, Any], task: Task, params: Params) -> Tally:
        """Ask every client that may be asked."""
        codecs, ask = self.built.experiment.wire, Ask(self.built.plan is not None)
        ballot = Ballot(msgspec.json.encode(table).decode(), params)
        down = wire.encode(ballot, ask.download(task), codecs.down)
        rng = self.built.rng.at("vote")
        runner = ClientRunner(ask, task, self.built.client_records, rng, codecs)
        right = count = 0.0
        up_bytes = down_bytes = 0
        for client in self.built.candidates:
            answer = runner.answer(Work(_NO_ROUND, client, down, None), lambda *_: None)
            if answer.error is not None:
                raise RunError(f"vote: client {client}: {answer.error}")
            vote = wire.decode(answer.message, ask.upload(task), codecs.up)
            if not ask.private and vote.right > vote.count:
                raise RunError(f"vote: client {client} has {vote.right} of {vote.count} right")
            right, count = right + vote.right, count + vote.count
            up_bytes, down_bytes = up_bytes + len(answer.message), down_bytes + len(down)
        return Tally(right, count, up_bytes, down_bytes)


def voters_of(run: RunFolder | None, path: Path, stored: StoredSet) -> Voters:
    """The clients of the run that the set at ``path`` is from, with their records."""
    if run is None:
        raise RequestError(
            f"--objective vote: {path} lies in no run folder, so there are no clients to ask; "
            "take --objective holdout"
        )
    partition = Partition.load(run.path / "partition.safetensors")
    built = build(run.read_config(), partition=partition)
    refuse_other_data(path, stored, built.dataset)
    if built.dataset.fingerprint != run.read_summary().data_sha256:
        raise RequestError(
            f"--objective vote: the data are not those that the run in {run.path} had; bring them "
            "back, or take --objective holdout"
        )
    return Voters(built.planned().with_ledgers(run.path / "ledger"))


def refuse_parallel(voters: Voters, workers: int) -> None:
    """Two processes could both see room for the last access: private votes have one."""
    if voters.built.plan is not None and workers > 1:
        raise RequestError(
            "--workers: private votes are counted one after another; take --workers 1"
        )


def refuse_overspending(voters: Voters, votes: int) -> None:
    """Refuse a search whose votes might pass the privacy budget, before the first of them."""
    if votes > voters.left:
        raise RequestError(
            f"--objective vote: {votes} votes (trials times repeats), and the privacy budget of "
            f"the run leaves {max(0, voters.left):g}; lower --trials, take --objective holdout, "
            "which costs no privacy, or make the run with room to spare: privacy.epsilon above "
            "what its rounds need at a privacy.sigma of your own"
        )
