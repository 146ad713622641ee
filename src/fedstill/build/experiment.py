"""An experiment with everything that runs it."""

import dataclasses
import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import torch

from fedstill.client import ClientRecords, ClientRunner
from fedstill.config import Experiment, deciding
from fedstill.config.nested import Table, as_table
from fedstill.config.registry import build_method, build_model
from fedstill.data import (
    Dataset,
    Partition,
    kind_of,
    mapped,
    parse_partition,
)
from fedstill.errors import RequestError, RunError
from fedstill.features import Backbone
from fedstill.models import MODELS, Model, separate
from fedstill.privacy.guards import private_form_of, refuse_leaks, refuse_partial_start
from fedstill.privacy.plan import PrivatePlan, make_plan
from fedstill.records import Records
from fedstill.rng import Rng
from fedstill.scaling import Scaling
from fedstill.types import AnyMethod, Limits, ServerContext, Task
from fedstill.wire import pixel_bits


@dataclass(frozen=True)
class BuiltExperiment:
    """An experiment with everything that runs it.

    ``given_model`` replaces the network that the experiment names, which is built once, when it is
    first needed (voters never need it). ``portable``: another process can build the same from
    names. Only a private run has ``plan`` and ``ledgers``.
    """

    experiment: Experiment
    dataset: Dataset
    partition: Partition
    method: AnyMethod
    given_model: Model | None = None
    portable: bool = True
    plan: PrivatePlan | None = None
    ledgers: Path | None = None

    @cached_property
    def model(self) -> Model:
        """The network; with privacy on, one that cannot mix records."""
        model = self.given_model or _named_model(self.experiment, self.dataset)
        if model.statistics:
            _refuse_batch_norm(self.experiment, self.method)
        return model if self.experiment.privacy is None else separate(model)

    @cached_property
    def start(self) -> AnyMethod | None:
        """The method that makes the first round, if the experiment starts with another one."""
        section = self.experiment.start
        return None if section is None else build_method(section, "start")

    def method_in(self, round: int) -> AnyMethod:
        """The method of this round; 0 is before the first."""
        return self.method if round > 1 or self.start is None else self.start

    def name_in(self, round: int) -> str:
        """The name of that method."""
        section = self.experiment.start if self.method_in(round) is self.start else None
        return str((section or self.experiment.method)["name"])

    @cached_property
    def seen(self) -> Dataset:
        """The records as methods see them: vectors, where the network starts with a fixed map."""
        features = self.model.fixed
        if features is None:
            return self.dataset
        alone = self.experiment.privacy is not None and isinstance(features, Backbone)
        return mapped(self.dataset, features, torch.device(self.experiment.device), alone)

    @cached_property
    def task(self) -> Task:
        """What is learnt."""
        data, experiment, features = self.dataset, self.experiment, self.model.fixed
        return Task(
            model=self.model.head,
            shape=data.shape if features is None else (features.size,),
            classes=data.classes,
            clients=self.partition.clients,
            rounds=experiment.rounds,
            scaling=data.scaling if features is None else Scaling((), ()),
            device=torch.device(experiment.device),
            limits=self.limits,
            precision=getattr(torch, experiment.precision),
            kind=kind_of(data.name, data.shape) if features is None else "other",
            sent_bits=pixel_bits(experiment.wire.up),
        )

    @property
    def limits(self) -> Limits:
        """What clients' messages are declared to stay within. All of it is public."""
        wire, records = self.experiment.wire, self.experiment.max_records
        if records is None and self.plan is not None:
            records = max(self.plan.sizes)
        elif records is None and not parse_partition(self.experiment.partition).on_nodes:
            records = max(1, int(self.partition.sizes.max()))
        return Limits(records or Limits.records, wire.max_norm, wire.pixel_slack)

    def planned(self) -> "BuiltExperiment":
        """The same with its privacy plan and sigma; unchanged where privacy is off."""
        settings = self.experiment.privacy
        if settings is None:
            return self
        sizes = settings.sizes(self.partition.clients, self.dataset.name)
        rate = settings.rate(sizes, self.method_in(1).private_rate)
        accesses = self._accesses(self.method, self.experiment.method, rate)
        first = None
        if self.start is not None and self.experiment.start is not None:
            refuse_partial_start(self.name_in(1), rate)
            first = self._accesses(self.start, self.experiment.start, rate)
        planned = max(
            taken * accesses + begun * ((first or accesses) - accesses)
            for taken, begun in zip(self.turns(), self._in_first_round(), strict=True)
        )
        classes = self._public_classes()
        plan = make_plan(settings, rate, sizes, classes, accesses, first, planned)
        # Sigma is part of the configuration now: a resumed run must not solve for another one.
        privacy = dataclasses.replace(settings, sigma=plan.sigma)
        experiment = dataclasses.replace(self.experiment, privacy=privacy)
        # The model was built for the guards: it is handed on, not built again.
        return dataclasses.replace(self, experiment=experiment, plan=plan, given_model=self.model)

    def _accesses(self, method: AnyMethod, section: Table, rate: float) -> int:
        """The accesses of a round of this method, which is refused if it would leak."""
        settings = self.experiment.privacy
        assert settings is not None
        form = private_form_of(method, section["name"], rate)
        refuse_leaks(settings, form, method, self.task, self.dataset)
        return form.accesses

    def _in_first_round(self) -> list[bool]:
        sampled = set(self.sample(1))
        return [client in sampled for client in range(self.partition.clients)]

    def with_plan(self, plan: PrivatePlan | None, ledgers: Path | None) -> "BuiltExperiment":
        """The same with a plan that another process made."""
        return dataclasses.replace(self, plan=plan, ledgers=ledgers)

    def with_ledgers(self, folder: Path) -> "BuiltExperiment":
        """The same with a place for its clients' ledgers, if it is a private run."""
        return self if self.plan is None else dataclasses.replace(self, ledgers=folder)

    def _public_classes(self) -> tuple[tuple[int, ...], ...]:
        """The classes that every client sends: all, or those that are declared public."""
        clients = range(self.partition.clients)
        if self.experiment.privacy is None or self.experiment.privacy.classes != "declared":
            return tuple(tuple(range(self.dataset.classes)) for _ in clients)
        labels = self.dataset.train.labels
        return tuple(tuple(labels[self.partition.index(c)].unique().tolist()) for c in clients)

    def turns(self) -> list[int]:
        """The number of rounds in which each client takes part: the sampling is public."""
        turns = [0] * self.partition.clients
        for number in range(1, self.experiment.rounds + 1):
            for client in self.sample(number):
                turns[client] += 1
        return turns

    @property
    def client_records(self) -> ClientRecords:
        """The clients' records as the method sees them, behind the private door if there is one."""
        return self._records(self.seen)

    @property
    def raw_records(self) -> ClientRecords:
        """The same before any fixed map, for networks other than the experiment's own."""
        return self._records(self.dataset)

    def _records(self, dataset: Dataset) -> ClientRecords:
        if self.experiment.privacy is not None and self.plan is None:
            raise RunError("privacy is on and there is no plan: no records are handed out")
        return ClientRecords(dataset, self.partition, self.plan, self.ledgers)

    @cached_property
    def runner(self) -> ClientRunner:
        """What runs one client's turn."""
        return ClientRunner(
            self.method, self.task, self.client_records, self.rng, self.experiment.wire, self.start
        )

    @property
    def digest(self) -> str:
        """SHA-256 of all that determines the result, apart from the records and their partition.

        Over canonical JSON: the settings, the scaling, and the network's kind and weight shapes.
        """
        parts = {
            "settings": deciding(self.experiment.table),
            "scaling": as_table(self.dataset.scaling),
            "model": self.model.description,
        }
        if self.dataset.columns:
            parts["columns"] = [as_table(column) for column in self.dataset.columns]
        return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()

    @property
    def rng(self) -> Rng:
        """The root of all random streams."""
        return Rng(self.experiment.seed)

    @cached_property
    def candidates(self) -> list[int]:
        """The clients that may be sampled: those with records.

        With privacy on and its classes not public, this would reveal which clients are empty: then
        all may be sampled. Nodes with their own data are assumed to have records, and so are all
        clients on a node that has not opened any.
        """
        privacy = self.experiment.privacy
        rule = parse_partition(self.experiment.partition)
        if rule.on_nodes or (privacy is not None and privacy.classes == "all"):
            return list(range(self.partition.clients))
        clients: list[int] = self.partition.sizes.nonzero().flatten().tolist()
        return clients or list(range(self.partition.clients))

    @property
    def clients_per_round(self) -> int:
        """How many clients are sampled: at least one."""
        return max(1, round(self.experiment.participation * len(self.candidates)))

    def sample(self, number: int) -> list[int]:
        """The clients of this round, drawn from the round's own random stream."""
        generator = self.rng.at("round", number, "sampling").numpy()
        chosen = generator.choice(len(self.candidates), self.clients_per_round, replace=False)
        return sorted(self.candidates[i] for i in chosen)

    @property
    def test(self) -> Records:
        """The official test split."""
        split = self.seen.test
        return Records(split, torch.arange(len(split)), self.seen.scaling, self.task.device)

    @property
    def quorum(self) -> int:
        """How many of the sampled clients must answer: at least one."""
        return self.experiment.needed(self.clients_per_round)

    def refuse_useless_start(self) -> None:
        """Refuse a start whose weights the method would not use."""
        if self.start is None:
            return
        context = ServerContext(self.task, 1, self.rng.at("probe"))
        begun = self.start.params(self.start.init(context))
        after = self.method.params(self.method.init(dataclasses.replace(context, start=begun)))
        if any(after[name] is not value for name, value in begun.items()):
            raise RequestError(
                f"start: {self.experiment.method['name']} begins with networks of its own, and the "
                "weights of a first round would be lost; leave it out"
            )

    def refuse_too_few_replies(self) -> None:
        """Refuse a run whose rounds would not have the replies that its method needs."""
        needed = self.method.replies_needed
        who = needed.because or f"method '{self.experiment.method['name']}'"
        remedy = f", {needed.remedy}" if needed.remedy else ""
        if self.clients_per_round < needed.number:
            raise RequestError(
                f"{who} needs {needed.number} clients per round, {self.clients_per_round} are "
                f"sampled; raise clients or participation{remedy}"
            )
        if self.quorum < needed.number:
            raise RequestError(
                f"quorum = {self.experiment.quorum:g} lets a round end with {self.quorum} "
                f"replies, {who} needs {needed.number}; raise quorum{remedy}"
            )


def _refuse_batch_norm(experiment: Experiment, method: AnyMethod) -> None:
    """Batch norms mix records and keep statistics of them: only where weights are averaged."""
    remedy = "use model.norm = 'group', or 'frozen' for a pretrained network"
    if experiment.privacy is not None:
        raise RequestError(f"model.norm = 'batch': no privacy, because it mixes records; {remedy}")
    if not method.averages_weights:
        raise RequestError(
            f"model.norm = 'batch': {experiment.method['name']} does not average the clients' "
            f"weights, and with them the statistics; {remedy}"
        )


_NOT_TEXT = {False: "mlp or convnet", True: "mlp"}  # the models to use, by whether it is a table


def _named_model(experiment: Experiment, data: Dataset) -> Model:
    """The network that the experiment names, refused if it cannot read these records."""
    name = experiment.model["name"]
    model = build_model(experiment.model, data.shape, data.classes, experiment.seed)
    reads_tokens = model.continuous_shape is not None
    if name in MODELS and reads_tokens != data.tokens:
        kind, remedy = (
            ("text", "gru or transformer") if data.tokens else ("not text", _NOT_TEXT[data.table])
        )
        raise RequestError(
            f"model: '{name}' cannot read '{data.name}': its records are {kind}; use {remedy}"
        )
    return model
