"""What a partition rule is. ``rules.py`` has the rules themselves and their table."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedstill.errors import RequestError
from fedstill.rng import Rng

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TrainingLabels:
    """What a rule may know of the training records.

    ``labels`` are [N], or [N, positions] for texts. ``groups`` are the records' natural owners,
    [N], where the data name them.
    """

    labels: Ints
    classes: int
    groups: Ints | None = None

    def __len__(self) -> int:
        return len(self.labels)


class PartitionRule(ABC):
    """Which client gets which training record. A subclass is a frozen dataclass.

    Its fields are the rule's parameters: ``classes:2`` is the ``word`` ``classes``, whose
    ``parameter`` is called N, with the value 2.
    """

    word: ClassVar[str]
    parameter: ClassVar[str | None] = None
    needs_classes: ClassVar[bool] = False  # each record must have one class: refused for texts
    default_clients: ClassVar[int | None] = 10  # if none are requested; None: no default
    on_nodes: ClassVar[bool] = False  # the records are on the nodes, unknown to the server

    def __str__(self) -> str:
        return ":".join([self.word, *map(repr, vars(self).values())])

    @classmethod
    def form(cls) -> str:
        """How to write the rule: ``classes:N``."""
        return cls.word if cls.parameter is None else f"{cls.word}:{cls.parameter}"

    @classmethod
    def parse(cls, text: str, value: str) -> Self:
        """The rule with the ``value`` of its parameter; ``text`` is all that the user wrote."""
        return cls()

    @property
    @abstractmethod
    def sentence(self) -> str:
        """The rule in a report: what stands in parentheses after "10 clients"."""

    def number_of_clients(self, requested: int | None, records: TrainingLabels) -> int:
        """How many clients there are: as many as requested, by default."""
        clients = _at_least_one(requested)
        if clients > len(records) and not self.on_nodes:
            raise RequestError(
                f"clients = {clients}: more than the {len(records)} training records; "
                "use fewer clients"
            )
        return clients

    @abstractmethod
    def assign(self, records: TrainingLabels, clients: int, rng: Rng, allow_empty: bool) -> Ints:
        """The owner of every record, 0 to ``clients - 1``.

        A client without records is refused unless ``allow_empty``.
        """


def _at_least_one(clients: int | None) -> int:
    if clients is None:
        raise RequestError("the number of clients is missing; set clients")
    if clients < 1:
        raise RequestError(f"clients = {clients}: must be 1 or more")
    return clients
