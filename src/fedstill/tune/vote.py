"""A vote of the clients: a candidate's accuracy on the records that never leave them.

One exchange, as in any round: the candidate's weights go down, two numbers come back. Every message
passes the wire, is checked, and is counted. A client's part has the interface of a method's client
side, so that the same client code runs it and gives it records, or private access to them.

In a private run a vote is one more access to a client's records, counted in the run's ledgers: a
Poisson sample, with 1 for each record that the candidate classifies correctly, so that one record
changes the sum by at most 1, and noise of sigma. The accuracy is relative to the expected size of
the sample, which is public.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from fedstill import wire
from fedstill.build import BuiltExperiment, build_resolved
from fedstill.client import ClientRunner, Work
from fedstill.config.resolve import resolve_with_method
from fedstill.data import Partition, load
from fedstill.errors import RequestError, RunError
from fedstill.models import separate
from fedstill.privacy.guards import refuse_mixing
from fedstill.records import Records
from fedstill.runs.find import refuse_other_data
from fedstill.runs.folder import RunFolder
from fedstill.runs.sets import StoredSet
from fedstill.steps.scores import score
from fedstill.types import ClientContext, Params, Task
from fedstill.wire import Schema, params_specs

_NO_ROUND = 0  # in a ledger: a vote belongs to no round


@dataclass(frozen=True)
class Ballot:
    """Down: a network, as the JSON of its ``[model]`` table, and its weights."""

    model: str
    params: Params


@dataclass(frozen=True)
class Vote:
    """Up: how many of the client's records the candidate classifies correctly, and their number."""

    right: int
    count: int


@dataclass(frozen=True)
class NoisyVote:
    """The private form: a noisy sum over a sample, and the sample's expected size."""

    right: float
    count: float


@dataclass(frozen=True)
class Tally:
    """The sum of the clients' votes, and their cost in bytes."""

    right: float
    count: float
    up_bytes: int
    down_bytes: int

    @property
    def accuracy(self) -> float:
        return self.right / self.count


@dataclass(frozen=True)
class VotingClient:
    """The client's side of a vote, with the interface of a method's client side."""

    private: bool = False

    def init_client(self, task: Task) -> None:
        return None

    def download(self, task: Task) -> Schema[Ballot]:
        return Schema(Ballot, params_specs(task, "params"))

    def upload(self, task: Task) -> Schema[Any]:
        most = task.limits.records
        if self.private:
            noisy = most + task.limits.norm
            return Schema(NoisyVote, numbers={"right": (-noisy, noisy), "count": (0, most)})
        return Schema(Vote, numbers={"right": (0, most), "count": (1, most)})

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
        """What determines their votes: the records and their partition."""
        return f"{self.built.dataset.fingerprint}:{self.built.partition.digest}"

    @property
    def left(self) -> float:
        """How many more votes the privacy budget allows; unlimited without one."""
        plan, folder = self.built.plan, self.built.ledgers
        if plan is None or folder is None:
            return math.inf
        return min(plan.ledger(folder, client).room for client in self.built.candidates)

    @property
    def epsilon(self) -> float | None:
        """What the run and all votes so far have spent, where privacy is on."""
        plan, folder = self.built.plan, self.built.ledgers
        if plan is None or folder is None:
            return None
        return plan.spent(max(plan.ledger(folder, c).count for c in self.built.candidates))

    def vote(self, table: Mapping[str, Any], task: Task, params: Params) -> Tally:
        """The votes of all clients that may be sampled."""
        codecs, side = self.built.experiment.wire, VotingClient(self.built.plan is not None)
        task = dataclasses.replace(task, limits=self.built.limits)
        if side.private:
            task = dataclasses.replace(task, model=separate(task.model))
            refuse_mixing(task)
        ballot = Ballot(msgspec.json.encode(table).decode(), params)
        down = wire.encode(ballot, side.download(task), codecs.down)
        rng = self.built.rng.at("vote")
        runner = ClientRunner(side, task, self.built.raw_records, rng, codecs)
        right = count = 0.0
        up_bytes = down_bytes = 0
        for client in self.built.candidates:
            answer = runner.answer(Work(_NO_ROUND, client, down, None), lambda *_: None)
            if answer.error is not None:
                raise RunError(f"vote: client {client}: {answer.error}")
            vote = wire.decode(answer.message, side.upload(task), codecs.up)
            if not side.private and vote.right > vote.count:
                raise RunError(
                    f"vote: client {client} reports {vote.right} correct of {vote.count}"
                )
            right, count = right + vote.right, count + vote.count
            up_bytes, down_bytes = up_bytes + len(answer.message), down_bytes + len(down)
        return Tally(right, count, up_bytes, down_bytes)


def voters_of(run: RunFolder | None, path: Path, stored: StoredSet) -> Voters:
    """The clients of the run that the set at ``path`` is from, with their records."""
    if run is None:
        raise RequestError(
            f"--objective vote: {path} is not in a run folder, so there are no clients to ask; "
            "use --objective holdout"
        )
    experiment, method = resolve_with_method(run.read_config())
    dataset = load(experiment.data)
    refuse_other_data(path, stored, dataset)
    if dataset.fingerprint != run.read_digests().data_sha256:
        raise RequestError(
            f"--objective vote: the data are not those of the run in {run.path}; restore them, or "
            "use --objective holdout"
        )
    partition = Partition.load(run.partition_file)
    built = build_resolved(experiment, method, dataset=dataset, partition=partition)
    return Voters(built.planned().with_ledgers(run.path / "ledger"))


def refuse_overspending(voters: Voters, votes: int) -> None:
    """Refuse a search whose votes might exceed the privacy budget, before the first vote."""
    if votes > voters.left:
        raise RequestError(
            f"--objective vote: {votes} votes (trials times repeats), and the privacy budget of "
            f"the run leaves {max(0, voters.left):g}; lower --trials, use --objective holdout, "
            "which costs no privacy, or leave room in the run's budget: set privacy.sigma, and "
            "privacy.epsilon above what its rounds need"
        )
