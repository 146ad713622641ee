"""Engines carry work to clients and their answers back; how both are written as bytes.

Work and answers have one encoding for all that carries them (pipes, sockets, Flower's records):
three byte strings, the small fields as JSON, the message and the state. Large ones are never copied
into another, and whoever sends many can send equal ones once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Self, TypeVar

import msgspec

from fedstill.client import Answer, Work
from fedstill.errors import WireError, one_line

__all__ = [
    "Answer",
    "Encoded",
    "Engine",
    "Progress",
    "Work",
    "decode_answer",
    "decode_work",
    "encode_answer",
    "encode_work",
]

Progress = Callable[[int, int, int], None]  # client, step, steps
Encoded = tuple[bytes, bytes, bytes]  # fields, message, state

F = TypeVar("F", bound=msgspec.Struct)


class Engine(ABC):
    """Carries work to clients and their answers back, in any order."""

    # Whether clients count accesses to their records in ledgers of their own, which the server
    # cannot see: then it counts them too.
    keeps_ledgers: ClassVar[bool] = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    @abstractmethod
    def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
        """The answers of all these clients, as they come."""


class _WorkFields(msgspec.Struct, forbid_unknown_fields=True):
    round: int
    client: int
    stateless: bool


class _AnswerFields(msgspec.Struct, forbid_unknown_fields=True):
    client: int
    error: str | None
    traceback: str | None
    spent: bool
    asked: bool
    stateless: bool


def encode_work(work: Work) -> Encoded:
    """A client's work as bytes."""
    fields = _WorkFields(work.round, work.client, work.state is None)
    return msgspec.json.encode(fields), work.message, work.state or b""


def decode_work(parts: Sequence[bytes]) -> Work:
    """What ``encode_work`` wrote; anything else is a ``WireError``."""
    fields, message, state = _decoded(parts, _WorkFields)
    return Work(fields.round, fields.client, message, None if fields.stateless else state)


def encode_answer(answer: Answer) -> Encoded:
    """A client's answer as bytes."""
    fields = _AnswerFields(
        client=answer.client,
        error=answer.error,
        traceback=answer.traceback,
        spent=answer.spent,
        asked=answer.asked,
        stateless=answer.state is None,
    )
    return msgspec.json.encode(fields), answer.message, answer.state or b""


def decode_answer(parts: Sequence[bytes]) -> Answer:
    """What ``encode_answer`` wrote; anything else is a ``WireError``."""
    fields, message, state = _decoded(parts, _AnswerFields)
    return Answer(
        client=fields.client,
        message=message,
        state=None if fields.stateless else state,
        error=fields.error and one_line(fields.error),
        traceback=fields.traceback,
        spent=fields.spent,
        asked=fields.asked,
    )


def _decoded(parts: Sequence[bytes], kind: type[F]) -> tuple[F, bytes, bytes]:
    try:
        fields, message, state = parts
        return msgspec.json.decode(fields, type=kind), message, state
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(f"neither work nor an answer of a client: {error}") from error
