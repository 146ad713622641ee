"""Frames between the local engine and its worker processes: a line of JSON, then raw bytes."""

from collections.abc import Sequence
from typing import Any, BinaryIO

import msgspec

from fedstill.engine.client import Answer


def write_frame(stream: BinaryIO, header: dict[str, Any], parts: Sequence[bytes] = ()) -> None:
    """Send a header and its parts."""
    stream.write(msgspec.json.encode({**header, "sizes": [len(p) for p in parts]}) + b"\n")
    for part in parts:
        stream.write(part)
    stream.flush()


def read_frame(stream: BinaryIO) -> tuple[dict[str, Any], list[bytes]]:
    """The next frame; ``EOFError`` when the other side is gone."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    header: dict[str, Any] = msgspec.json.decode(line)
    sizes = header.pop("sizes")
    parts = [stream.read(size) for size in sizes]
    if [len(part) for part in parts] != sizes:  # the other side died in the middle of it
        raise EOFError
    return header, parts


def write_answer(stream: BinaryIO, answer: Answer) -> None:
    """Send a client's answer."""
    header = {
        "client": answer.client,
        "error": answer.error,
        "traceback": answer.traceback,
        "stateless": answer.state is None,
        "spent": answer.spent,
        "asked": answer.asked,
    }
    write_frame(stream, header, [answer.message, answer.state or b""])


def read_answer(frame: tuple[dict[str, Any], list[bytes]]) -> Answer:
    """The answer in a frame."""
    header, (message, state) = frame
    return Answer(
        header["client"],
        message,
        None if header["stateless"] else state,
        header["error"],
        header["traceback"],
        header["spent"],
        header["asked"],
    )
