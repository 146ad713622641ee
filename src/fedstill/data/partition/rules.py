"""The partition rules. A new one is a class here and an entry in ``RULES``.

These are our own and not flwr-datasets' partitioners, for four reasons: those pull a large
stack (datasets, pandas, aiohttp) into the core install; the Dirichlet one gives up after ten
draws at a small alpha (100 clients at 0.05 fail); the pathological one silently drops the
classes that no client drew; and none of them draws from our named streams, so a partition
would depend on the version of another package.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedstill.data.partition.draws import by_class, dirichlet_shares, round_shares, shuffled
from fedstill.data.partition.rule import Ints, PartitionRule, TrainingLabels
from fedstill.errors import RequestError, did_you_mean
from fedstill.rng import Rng

_MOST_ATTEMPTS = 1000
_LEAST_BALANCED = 10  # records of every client of a balanced partition: NIID-Bench's number
_MOST_DRAWS = 10_000_000  # numbers drawn over all attempts: about a second


@dataclass(frozen=True)
class Iid(PartitionRule):
    """Every client gets the same number of random records; sizes differ by one at most."""

    word = "iid"

    @property
    def sentence(self) -> str:
        return "records partitioned evenly"

    def assign(self, records: TrainingLabels, clients: int, rng: Rng, allow_empty: bool) -> Ints:
        return shuffled(len(records), np.arange(len(records)) % clients, rng)


@dataclass(frozen=True)
class Dirichlet(PartitionRule):
    """Each class is split by a draw from Dirichlet(alpha): the smaller alpha, the more skewed.

    ``balanced`` is the rule of NIID-Bench (Li et al., ICDE 2022), which FedDM and FedDualMatch use:
    a client that has its even share of all records gets nothing of further classes, and the draw is
    repeated until every client has ten records. Without the full clients, a Dirichlet draw is a
    Dirichlet draw over the others, so it is made over them alone.
    """

    alpha: float
    balanced: bool = False

    word = "dirichlet"
    parameter = "ALPHA[:balanced]"
    needs_classes = True

    @classmethod
    def parse(cls, text: str, value: str) -> Self:
        alpha, colon, kind = (part.strip() for part in value.partition(":"))
        if colon and kind != "balanced":
            raise RequestError(f"partition '{text}': write it as {cls.form()}")
        return cls(_alpha(text, alpha), bool(colon))

    def __str__(self) -> str:
        return f"{self.word}:{self.alpha!r}" + (":balanced" if self.balanced else "")

    @property
    def sentence(self) -> str:
        sizes = ", balanced in size" if self.balanced else ""
        return f"classes partitioned unevenly, Dirichlet {self.alpha:g}{sizes}"

    def assign(self, records: TrainingLabels, clients: int, rng: Rng, allow_empty: bool) -> Ints:
        in_class = np.bincount(records.labels, minlength=records.classes)
        attempts = 1 if allow_empty else _attempts(clients * records.classes)
        least = 0 if allow_empty else _LEAST_BALANCED if self.balanced else 1
        best = clients
        for attempt in range(attempts):
            counts = self._counts(in_class, clients, rng.at("attempt", attempt))
            small = int((counts.sum(axis=0) < least).sum())
            if small == 0:
                return by_class(records.labels, counts, rng)
            best = min(best, small)
        without = f"{least} records" if self.balanced else "records"
        raise RequestError(
            f"partition {self} leaves {best} of {clients} clients without {without} (the best of "
            f"{attempts} draws); use fewer clients, a larger alpha, or "
            "--set allow_empty_clients=true"
        )

    def _counts(self, in_class: Ints, clients: int, rng: Rng) -> Ints:
        """Records [classes, clients] of one draw."""
        if not self.balanced:
            shares = dirichlet_shares(self.alpha, clients, len(in_class), rng)
            return round_shares(shares, in_class)
        even = in_class.sum() / clients
        counts = np.zeros((len(in_class), clients), dtype=np.int64)
        for label, number in enumerate(in_class):
            open_ = np.flatnonzero(counts.sum(axis=0) < even)
            if len(open_):  # none is open only where no records are left
                shares = dirichlet_shares(self.alpha, len(open_), 1, rng.at("class", label))
                counts[label, open_] = round_shares(shares, np.array([number]))[0]
        return counts


@dataclass(frozen=True)
class Classes(PartitionRule):
    """Each client holds ``per_client`` classes, disjoint where there are enough of them.

    A class's records are split evenly over its owners, as in Fed-GLOSS: 5 clients with 2 of 10
    classes each are disjoint. In general every class has floor or
    ceil(clients * per_client / classes) owners.
    """

    per_client: int

    word = "classes"
    parameter = "N"
    needs_classes = True

    @classmethod
    def parse(cls, text: str, value: str) -> Self:
        try:
            per_client = int(value)
        except ValueError:
            raise RequestError(f"partition '{text}': N must be a whole number, e.g. 2") from None
        if per_client < 1:
            raise RequestError(f"partition '{text}': N must be 1 or more")
        return cls(per_client)

    @property
    def sentence(self) -> str:
        return f"{self.per_client} classes each"

    def assign(self, records: TrainingLabels, clients: int, rng: Rng, allow_empty: bool) -> Ints:
        classes = records.classes
        self._refuse_unless_possible(clients, classes)
        held = self._held(clients, classes, rng.at("classes"))
        in_class = np.bincount(records.labels, minlength=classes)
        owners = held.sum(axis=0)
        counts = round_shares(held.T / owners[:, None], in_class)
        empty = int((counts.sum(axis=0) == 0).sum())
        if empty and not allow_empty:
            raise RequestError(
                f"partition {self} leaves {empty} of {clients} clients without records "
                "(their classes have fewer records than owners); use fewer clients, or "
                "--set allow_empty_clients=true"
            )
        return by_class(records.labels, counts, rng)

    def _refuse_unless_possible(self, clients: int, classes: int) -> None:
        if self.per_client > classes:
            raise RequestError(
                f"partition {self}: there are only {classes} classes; N must be {classes} or less"
            )
        if clients * self.per_client < classes:
            raise RequestError(
                f"partition {self} with {clients} clients leaves "
                f"{classes - clients * self.per_client} of {classes} classes without an owner; use "
                f"classes:{-(-classes // clients)} or {-(-classes // self.per_client)} clients"
            )

    def _held(self, clients: int, classes: int, rng: Rng) -> NDArray[np.bool_]:
        """Which client holds which class, bool [clients, classes].

        Clients take their classes from a random permutation of all of them, and from a new one
        when it is used up. A client whose classes come from two permutations must not get a class
        twice: in the second one, those it holds already are moved to the end.
        """
        generator = rng.numpy()
        held = np.zeros((clients, classes), dtype=np.bool_)
        remaining = generator.permutation(classes)
        for client in range(clients):
            taken, remaining = remaining[: self.per_client], remaining[self.per_client :]
            held[client, taken] = True
            if (short := self.per_client - len(taken)) > 0 or len(remaining) == 0:
                new = generator.permutation(classes)
                new = new[np.argsort(held[client, new], kind="stable")] if short else new
                held[client, new[:short]] = True
                remaining = new[short:]
        return held


@dataclass(frozen=True)
class Quantity(PartitionRule):
    """Clients hold all classes alike, but their sizes are a draw from Dirichlet(alpha)."""

    alpha: float

    word = "quantity"
    parameter = "ALPHA"

    @classmethod
    def parse(cls, text: str, value: str) -> Self:
        return cls(_alpha(text, value))

    @property
    def sentence(self) -> str:
        return f"records partitioned into uneven amounts, Dirichlet {self.alpha:g}"

    def assign(self, records: TrainingLabels, clients: int, rng: Rng, allow_empty: bool) -> Ints:
        reserved = 0 if allow_empty else 1  # records that every client gets whatever its share
        shares = dirichlet_shares(self.alpha, clients, 1, rng.at("sizes"))
        drawn = np.array([len(records) - reserved * clients])
        sizes = reserved + round_shares(shares, drawn)[0]
        return shuffled(len(records), np.repeat(np.arange(clients), sizes), rng)


@dataclass(frozen=True)
class Natural(PartitionRule):
    """A column of the data names the client of each record."""

    word = "natural"
    default_clients = None  # the data decide

    @property
    def sentence(self) -> str:
        return "records with their natural owners"

    def number_of_clients(self, requested: int | None, records: TrainingLabels) -> int:
        owners = int(_named(records.groups).max()) + 1
        if requested is not None and requested != owners:
            raise RequestError(
                f"clients = {requested}: partition natural has {owners} clients, one per owner in "
                f"the data; leave clients out, or choose another partition, e.g. iid"
            )
        return owners

    def assign(self, records: TrainingLabels, clients: int, rng: Rng, allow_empty: bool) -> Ints:
        return _named(records.groups)


@dataclass(frozen=True)
class Nodes(PartitionRule):
    """Every node of a deployment holds its own records: there is nothing to partition."""

    word = "nodes"
    default_clients = None  # the user must say how many nodes there are
    on_nodes = True

    @property
    def sentence(self) -> str:
        return "each with its own records"

    def assign(self, records: TrainingLabels, clients: int, rng: Rng, allow_empty: bool) -> Ints:
        return np.zeros(0, dtype=np.int64)


RULES: dict[str, type[PartitionRule]] = {
    rule.word: rule for rule in (Iid, Dirichlet, Classes, Quantity, Natural, Nodes)
}


def parse_partition(text: str) -> PartitionRule:
    """The rule that a user wrote: a word of ``RULES``, with its parameter after a colon."""
    word, colon, value = (part.strip() for part in text.partition(":"))
    if word not in RULES:
        raise RequestError(f"unknown partition '{text}'{did_you_mean(word, RULES)}")
    rule = RULES[word]
    if (rule.parameter is not None) != bool(colon):
        raise RequestError(f"partition '{text}': write it as {rule.form()}")
    return rule.parse(text, value)


def _alpha(text: str, value: str) -> float:
    try:
        alpha = float(value)
    except ValueError:
        raise RequestError(f"partition '{text}': ALPHA must be a number, e.g. 0.1") from None
    if not math.isfinite(alpha) or alpha <= 0:
        raise RequestError(
            f"partition '{text}': ALPHA must be a finite number greater than 0, e.g. 0.1"
        )
    return alpha


def _attempts(draws: int) -> int:
    return max(10, min(_MOST_ATTEMPTS, _MOST_DRAWS // draws))


def _named(groups: Ints | None) -> Ints:
    """The natural owners, if the data name them."""
    if groups is None:
        raise RequestError(
            "partition natural: the data do not say whose the records are; "
            "name the column that does in data.client_column"
        )
    return groups
