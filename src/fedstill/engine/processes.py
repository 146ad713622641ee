"""Worker processes: how they are started, how they exchange frames with us, how they end.

A frame is a line of JSON and raw bytes after it. Nothing is pickled.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, BinaryIO, cast

import msgspec

from fedstill.engine import ahead
from fedstill.engine.memory import keep_freed_memory
from fedstill.errors import UNREADABLE, RunError, WireError

_LONGEST_LINE = 2**26
_PIECE = 2**26

Frame = tuple[dict[str, Any], list[bytes]]


def write_frame(stream: BinaryIO, header: dict[str, Any], parts: Sequence[bytes] = ()) -> None:
    """Send a header and its parts."""
    stream.write(msgspec.json.encode({**header, "sizes": [len(p) for p in parts]}) + b"\n")
    for part in parts:
        stream.write(part)
    stream.flush()


def read_frame(stream: BinaryIO) -> Frame:
    """The next frame; ``EOFError`` when the other side is gone."""
    line = stream.readline(_LONGEST_LINE)
    if not line.endswith(b"\n"):
        raise EOFError
    try:
        header = msgspec.json.decode(line, type=dict[str, Any])
        sizes = msgspec.convert(header.pop("sizes"), list[Annotated[int, msgspec.Meta(ge=0)]])
    except (KeyError, *UNREADABLE) as error:
        raise WireError(f"not a frame of a worker process: {error}") from error
    return header, [_read(stream, size) for size in sizes]


def _read(stream: BinaryIO, size: int) -> bytes:
    """So many bytes, asked for piece by piece: memory is taken for what came, not on a promise."""
    pieces = []
    while size > 0:
        piece = stream.read(min(size, _PIECE))
        if not piece:  # the other side died in the middle of it
            raise EOFError
        pieces.append(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class WorkerProcess:
    """A worker process that runs ``python -m MODULE``, as its parent sees it.

    The first frame tells it what to work on. A worker that cannot start answers with ``fatal``.
    """

    def __init__(self, module: str, header: dict[str, Any], advice: str = "") -> None:
        self._advice = advice  # to a user whose worker died
        self._process = ahead.take(module)
        # A user's modules are found there as they are here.
        self.send({**header, "path": sys.path})

    def send(self, header: dict[str, Any], parts: Sequence[bytes] = ()) -> None:
        """Send a frame; a ``RunError`` says why the process is gone, if it is."""
        try:
            write_frame(cast(BinaryIO, self._process.stdin), header, parts)
        except OSError:
            raise RunError(f"a worker process {self._death()}") from None

    def receive(self) -> Frame:
        """Its next frame; a ``RunError`` says why there is none."""
        try:
            header, parts = read_frame(cast(BinaryIO, self._process.stdout))
        except (EOFError, OSError):
            raise RunError(f"a worker process {self._death()}") from None
        if "fatal" in header:
            raise RunError(f"a worker process could not start: {header['fatal']}")
        return header, parts

    def kill(self) -> None:
        """End it. Its streams stay open for a thread that still reads from them."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Close its streams."""
        self._process.communicate()

    def _death(self) -> str:
        """Why it ended: the reason that it sent, or its exit code."""
        with suppress(EOFError, OSError, KeyError, WireError):
            header, _ = read_frame(cast(BinaryIO, self._process.stdout))
            return f"could not start: {header['fatal']}"
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        killed = self._process.returncode == -signal.SIGKILL
        reason = "was killed (out of memory?)" if killed else f"ended ({self._process.returncode})"
        return f"{reason}{self._advice}"


class Parent:
    """The process that started this one, as the worker sees it."""

    def __init__(self) -> None:
        self._requests = sys.stdin.buffer
        self._replies = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)  # printed text must not end up between the frames
        _end_with_parent()
        keep_freed_memory()
        self.header, _ = self.receive()
        sys.path[:] = self.header["path"]

    def receive(self) -> Frame:
        """The next frame; ``EOFError`` when there is no more to do."""
        return read_frame(self._requests)

    def send(self, header: dict[str, Any], parts: Sequence[bytes] = ()) -> None:
        """Send a frame."""
        write_frame(self._replies, header, parts)


def _end_with_parent() -> None:
    """Stop when the parent is gone, even in the middle of a long computation."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
