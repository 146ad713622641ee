"""The weight of a client in an average: its number of records, or equal for all."""

from collections.abc import Sequence
from typing import Literal

from fedstill.methods.shared.messages import Counted
from fedstill.private import Leak
from fedstill.types import Reply

Weighting = Literal["records", "uniform"]


def client_weights(replies: Sequence[Reply[Counted]], weighting: Weighting) -> list[float]:
    """The share of each client in the average: n_k / n, or equal for all."""
    if weighting == "uniform":
        return [1.0 / len(replies)] * len(replies)
    total = sum(reply.message.records for reply in replies)
    return [reply.message.records / total for reply in replies]


def weighting_leaks(weighting: str) -> tuple[Leak, ...]:
    """In a private run, weighting by n_k leaks the exact number of records."""
    if weighting != "records":
        return ()
    return (
        Leak(
            "weighting",
            weighting,
            "a client's number of records is private, and its weight in the average reveals it",
            "weight all clients equally, or declare sizes public in privacy.public_size",
        ),
    )
