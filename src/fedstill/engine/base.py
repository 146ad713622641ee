"""Engines carry work to clients and their answers back; how both are written as bytes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Self

import msgspec

from fedstill.client import Answer, Work
from fedstill.errors import WireError

__all__ = ["Answer", "Engine", "Progress", "Work", "decode_answer", "decode_work", "encode"]

Progress = Callable[[int, int, int], None]  # client, step, steps


class Engine(ABC):
    """Carries work to clients and their answers back, in any order."""

    # Whether clients count accesses to their records in their own ledgers, which the server
    # cannot see: then the server counts them as well.
    keeps_ledgers: ClassVar[bool] = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    @abstractmethod
    def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
        """The answers of all these clients, as they arrive."""


def encode(value: Work | Answer) -> bytes:
    """Work or an answer as bytes, for any transport. The message inside is not changed."""
    return msgspec.msgpack.encode(value)


def decode_work(data: bytes) -> Work:
    """What ``encode`` wrote; anything else is a ``WireError``."""
    try:
        return msgspec.msgpack.decode(data, type=Work)
    except (msgspec.MsgspecError, ValueError) as error:
        raise WireError(f"not the work of a client: {error}") from error


def decode_answer(data: bytes) -> Answer:
    """What ``encode`` wrote; anything else is a ``WireError``."""
    try:
        return msgspec.msgpack.decode(data, type=Answer)
    except (msgspec.MsgspecError, ValueError) as error:
        raise WireError(f"not an answer: {error}") from error
