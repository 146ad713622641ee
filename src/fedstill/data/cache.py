"""Decoded records on disk: decoding happens once, and every process maps the same pages.

A cache file is named by a hash of what it was made from (path, size and time of change of
every source file, and the decoding settings), so a changed source is simply another file. It
is one safetensors file, mapped into memory and not read: workers share its pages. The
fingerprint of its contents is checked whenever it is opened; a file that does not pass is
rebuilt, and a folder that cannot be written only costs time.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from safetensors import SafetensorError

from fedstill.data.column import Column
from fedstill.data.decoded import Decoded
from fedstill.files import cache_folder, read_safetensors, write_safetensors
from fedstill.records import Split

FORMAT = 3  # raise it when decoding or the layout of the file changes


def cached(
    name: str,
    files: Sequence[Path],
    settings: Mapping[str, object],
    decode: Callable[[], Decoded],
    folder: Path | None = None,
) -> tuple[Decoded, str]:
    """The decoded records and their fingerprint, from the cache or from ``decode``.

    ``files`` are all the files that ``decode`` reads, ``settings`` all that steers it.
    """
    path = (folder or cache_folder()) / f"{name}-{_key(files, settings)}.safetensors"
    found = _read(path)
    if found is not None:
        return found
    decoded = decode()
    fingerprint = decoded.fingerprint()
    metadata = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "class_names": decoded.class_names,
        "group_names": decoded.group_names,
        "columns": msgspec.to_builtins(decoded.columns),
    }
    try:
        write_safetensors(path, decoded.tensors(), metadata)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        warnings.warn(
            f"cannot keep decoded data in {path.parent} ({reason}): they are decoded again each "
            "time; FEDSTILL_CACHE names another folder",
            stacklevel=2,
        )
        return decoded, fingerprint
    # Hand out the mapped copy, so that the first run shares its pages as later ones do.
    return _read(path) or (decoded, fingerprint)


def _key(files: Sequence[Path], settings: Mapping[str, object]) -> str:
    stamps = []
    for file in sorted(path.absolute() for path in files):
        status = file.stat()
        stamps.append([str(file), status.st_size, status.st_mtime_ns])
    made_from = json.dumps([FORMAT, stamps, dict(sorted(settings.items()))])
    return hashlib.sha256(made_from.encode()).hexdigest()[:24]


def _read(path: Path) -> tuple[Decoded, str] | None:
    """The file's contents, or ``None`` if it is absent, damaged or of another format."""
    if not path.is_file():
        return None
    try:
        tensors, metadata = read_safetensors(path)
        if metadata["format"] != FORMAT:
            return None
        decoded = Decoded(
            train=Split(
                tensors["train.inputs"], tensors["train.labels"], tensors.get("train.groups")
            ),
            test=Split(tensors["test.inputs"], tensors["test.labels"], tensors.get("test.groups")),
            class_names=tuple(metadata["class_names"]),
            group_names=tuple(metadata["group_names"]),
            columns=msgspec.convert(metadata["columns"], tuple[Column, ...]),
        )
        # Hashing runs at a gigabyte per second or more: cheap beside training on flipped bits.
        fingerprint = decoded.fingerprint()
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError):
        return None  # (RecursionError is a RuntimeError)
    return (decoded, fingerprint) if fingerprint == metadata["fingerprint"] else None
