"""A client's states on its node: they never leave it."""

import hashlib
from pathlib import Path

from fedstill.engine.flower.codes import Refusal
from fedstill.files import write_atomically

KEY_BYTES = 32  # of what the server keeps instead of a state
_MOST_EXPERIMENTS = 16  # whose states a node keeps


class States:
    """A client's states by their SHA-256: the one the server refers to, and the newest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, key: bytes) -> bytes:
        """The state that has this key."""
        path = self._path(key)
        try:
            state = path.read_bytes()
        except OSError:
            raise Refusal("state", f"no state {path.stem[:12]} of this client") from None
        if hashlib.sha256(state).digest() != key:
            raise Refusal("state", f"{path}: the client's state is damaged")
        return state

    def keep(self, state: bytes, before: bytes | None) -> bytes:
        """Keep a state and the one it came from; its key."""
        key = hashlib.sha256(state).digest()
        write_atomically(self._path(key), state)
        needed = {self._path(key), *([self._path(before)] if before else [])}
        for path in self._folder.glob("*.safetensors"):
            if path not in needed:
                path.unlink(missing_ok=True)
        self._forget_old_experiments()
        return key

    def _forget_old_experiments(self) -> None:
        """A server that describes ever new experiments must not fill the disk."""
        folders = {state.parent for state in self._folder.parent.glob("*/*.safetensors")}
        by_age = sorted(folders, key=lambda folder: folder.stat().st_mtime_ns)
        for folder in by_age[:-_MOST_EXPERIMENTS]:
            for path in folder.glob("*.safetensors"):
                path.unlink(missing_ok=True)

    def _path(self, key: bytes) -> Path:
        return self._folder / f"{key.hex()}.safetensors"
