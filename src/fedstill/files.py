"""Files that are either complete or absent, whenever the process is killed."""

import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

# The header is one entry: safetensors writes several in an order that changes from call to
# call, and equal contents must give equal bytes.
HEADER = "fedstill"

TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp")  # the names that ``replacing`` gives


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it becomes ``path`` when the block succeeds.

    Written next to the target, forced to disk, then renamed: a reader sees the old file or the
    new one, never half of it. If the block fails (a full disk), the old file stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    with suppress(OSError):  # a file system without locks
        fcntl.flock(handle, fcntl.LOCK_EX)  # until the block ends: ``sweep`` leaves it alone
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes the file readable by its owner only
        _to_disk(temporary)
        temporary.replace(path)
        _to_disk(path.parent)  # the rename itself
    finally:
        temporary.unlink(missing_ok=True)
        os.close(handle)


def sweep(folder: Path) -> None:
    """Remove the temporary files in this folder, and below it, whose writers were killed."""
    for path in folder.rglob(".*.tmp"):
        if TEMPORARY.fullmatch(path.name) and not _being_written(path):
            path.unlink(missing_ok=True)


def _being_written(path: Path) -> bool:
    """Whether a process that is alive holds the file's lock."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return True  # renamed meanwhile, or not ours to remove
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def write_atomically(path: Path, data: bytes) -> None:
    """Replace ``path`` by these bytes."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_safetensors(
    path: Path, tensors: "Mapping[str, Tensor]", header: Mapping[str, object]
) -> None:
    """Replace ``path`` by a safetensors file of these tensors."""
    from safetensors.torch import save  # here: it imports PyTorch, and most files are no tensors

    with replacing(path) as temporary:
        # Not written by the library, whose errors would hide that the disk is full.
        temporary.write_bytes(save(dict(tensors), metadata={HEADER: json.dumps(header)}))


def read_safetensors(path: Path) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Tensors and header. They are mapped, not read, so several processes share one copy.

    Raises on a file that is damaged or not ours.
    """
    from safetensors import safe_open

    path.stat()  # a missing file raises the system's error, which names it once
    with safe_open(path, framework="pt") as file:
        header: dict[str, Any] = _parsed((file.metadata() or {})[HEADER])
        return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118


def _parsed(text: str) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except RecursionError:
        raise ValueError("its header is nested too deep") from None
    if not isinstance(header, dict):
        raise ValueError("its header is no table")
    return header


def append_line(path: Path, line: bytes) -> None:
    """Add a line to the file and force it to disk."""
    with path.open("ab") as file:
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def cache_folder() -> Path:
    """``$FEDSTILL_CACHE``, else ``$XDG_CACHE_HOME/fedstill``, else ``~/.cache/fedstill``.

    Without any of them (a container's nameless user) a folder that cannot be made: no cache.
    """
    if chosen := os.environ.get("FEDSTILL_CACHE"):
        return Path(chosen)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "fedstill"
    try:
        return Path.home() / ".cache" / "fedstill"
    except RuntimeError:
        return Path(os.devnull) / "fedstill"
