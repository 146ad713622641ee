"""How records are dealt out to clients, as a user writes it: ``dirichlet:0.1``."""

import math
from dataclasses import dataclass

from fedstill.errors import RequestError, did_you_mean


@dataclass(frozen=True)
class Iid:
    """Every client gets the same number of records, drawn at random."""

    def __str__(self) -> str:
        return "iid"


@dataclass(frozen=True)
class Dirichlet:
    """Each class is shared out by a draw from Dirichlet(alpha): the smaller, the more skewed."""

    alpha: float

    def __str__(self) -> str:
        return f"dirichlet:{self.alpha!r}"


@dataclass(frozen=True)
class Classes:
    """Each client holds ``per_client`` classes, disjoint where there are enough of them."""

    per_client: int

    def __str__(self) -> str:
        return f"classes:{self.per_client}"


@dataclass(frozen=True)
class Quantity:
    """Clients hold all classes alike, but their sizes are a draw from Dirichlet(alpha)."""

    alpha: float

    def __str__(self) -> str:
        return f"quantity:{self.alpha!r}"


@dataclass(frozen=True)
class Natural:
    """A column of the data names the client of each record."""

    def __str__(self) -> str:
        return "natural"


@dataclass(frozen=True)
class Nodes:
    """Every node of a deployment holds records of its own: there is nothing to deal out."""

    def __str__(self) -> str:
        return "nodes"


PartitionSpec = Iid | Dirichlet | Classes | Quantity | Natural | Nodes

# Word, and the form to write it in.
FORMS = {
    "iid": "iid",
    "dirichlet": "dirichlet:ALPHA",
    "classes": "classes:N",
    "quantity": "quantity:ALPHA",
    "natural": "natural",
    "nodes": "nodes",
}


def parse_partition(text: str) -> PartitionSpec:
    """``iid``, ``dirichlet:ALPHA``, ``classes:N``, ``quantity:ALPHA`` or ``natural``."""
    word, colon, number = (part.strip() for part in text.partition(":"))
    if word not in FORMS:
        raise RequestError(f"unknown partition '{text}'{did_you_mean(word, FORMS)}")
    if (":" in FORMS[word]) != bool(colon):
        raise RequestError(f"partition '{text}': write it as {FORMS[word]}")
    match word:
        case "iid":
            return Iid()
        case "natural":
            return Natural()
        case "nodes":
            return Nodes()
        case "classes":
            return Classes(_per_client(text, number))
        case "dirichlet":
            return Dirichlet(_alpha(text, number))
        case _:
            return Quantity(_alpha(text, number))


def _alpha(text: str, number: str) -> float:
    try:
        alpha = float(number)
    except ValueError:
        raise RequestError(f"partition '{text}': ALPHA must be a number, e.g. 0.1") from None
    if not math.isfinite(alpha) or alpha <= 0:
        raise RequestError(
            f"partition '{text}': ALPHA must be a finite number greater than 0, e.g. 0.1"
        )
    return alpha


def _per_client(text: str, number: str) -> int:
    try:
        per_client = int(number)
    except ValueError:
        raise RequestError(f"partition '{text}': N must be a whole number, e.g. 2") from None
    if per_client < 1:
        raise RequestError(f"partition '{text}': N must be 1 or more")
    return per_client
