"""Checkpoints that survive a kill at any moment.

A checkpoint is a small manifest, ``round-0007.json``, that names the files of the server's and
the clients' states with their SHA-256. States are written first and the manifest last, each
atomically, so a manifest that exists speaks of files that are complete. The manifests of the
last two rounds are kept: when the newest or one of its files is damaged, the one before serves.
A client's state is written in the rounds in which it took part and referred to in the others.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fedstill.errors import UNREADABLE
from fedstill.files import write_atomically
from fedstill.runs.metrics import RoundMetrics

_KEPT = 2
_MANIFEST = re.compile(r"round-(\d+)\.json")


@dataclass(frozen=True)
class StoredFile:
    """A file in the checkpoint folder and what it must hash to."""

    file: str
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What the state after ``round`` consists of."""

    round: int
    server: StoredFile
    clients: dict[int, StoredFile] = field(default_factory=dict)
    metrics: RoundMetrics | None = None  # the round's line of metrics.jsonl, which may be torn

    @property
    def files(self) -> set[str]:
        """Every file this checkpoint needs."""
        return {self.server.file, *(f.file for f in self.clients.values())}


class Checkpoints:
    """The checkpoint folder of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damaged: list[int] = []  # rounds whose checkpoint was there but not whole
        self._manifest: Manifest | None = None

    def save(
        self,
        round: int,
        server: bytes,
        clients: Mapping[int, bytes],
        metrics: RoundMetrics | None = None,
    ) -> None:
        """Make the state after ``round`` durable; ``clients`` are those that changed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        stored = dict(self._manifest.clients) if self._manifest else {}
        for client, state in clients.items():
            stored[client] = self._store(f"client-{client:05d}-{round:04d}.safetensors", state)
        at_server = self._store(f"server-{round:04d}.safetensors", server)
        manifest = Manifest(round, at_server, stored, metrics)
        body = msgspec.json.encode(manifest)
        text = msgspec.json.encode({"sha256": _digest(body), "manifest": msgspec.Raw(body)})
        write_atomically(self.folder / f"round-{round:04d}.json", text)
        self._manifest = manifest
        self._tidy()

    def load(self) -> tuple[int, bytes] | None:
        """Round and server state of the newest checkpoint that is whole, if there is one."""
        for round, path in sorted(self._manifests().items(), reverse=True):
            manifest = self._read_manifest(path)
            server = self._whole(manifest) if manifest and manifest.round == round else None
            if server is not None:
                self._manifest = manifest
                self._tidy()
                return round, server
            self.damaged.append(round)
        return None

    def client(self, client: int) -> bytes | None:
        """A client's state at the loaded or last saved checkpoint; ``None`` before its first."""
        if self._manifest is None or client not in self._manifest.clients:
            return None
        state = self._read(self._manifest.clients[client])
        if state is None:
            raise OSError(f"{self.folder}: the state of client {client} was damaged")
        return state

    def metrics(self) -> dict[int, RoundMetrics]:
        """The metrics of the rounds whose manifests are kept, up to the loaded one."""
        last = self._manifest.round if self._manifest else 0
        kept = (self._read_manifest(p) for r, p in self._manifests().items() if r <= last)
        return {m.round: m.metrics for m in kept if m is not None and m.metrics is not None}

    def _whole(self, manifest: Manifest) -> bytes | None:
        """The server's state, if it and every client's are as the manifest says."""
        if any(self._read(stored) is None for stored in manifest.clients.values()):
            return None
        return self._read(manifest.server)

    def _store(self, name: str, data: bytes) -> StoredFile:
        write_atomically(self.folder / name, data)
        return StoredFile(name, _digest(data))

    def _read(self, stored: StoredFile) -> bytes | None:
        try:
            data = (self.folder / stored.file).read_bytes()
        except OSError:
            return None
        return data if _digest(data) == stored.sha256 else None

    def _read_manifest(self, path: Path) -> Manifest | None:
        class Envelope(msgspec.Struct):
            sha256: str
            manifest: msgspec.Raw

        try:
            envelope = msgspec.json.decode(path.read_bytes(), type=Envelope)
            body = bytes(envelope.manifest)
            whole = _digest(body) == envelope.sha256
            return msgspec.json.decode(body, type=Manifest) if whole else None
        except (OSError, *UNREADABLE):
            return None

    def _manifests(self) -> dict[int, Path]:
        if not self.folder.is_dir():
            return {}
        found = ((_MANIFEST.fullmatch(p.name), p) for p in self.folder.iterdir())
        return {int(match[1]): path for match, path in found if match}

    def _tidy(self) -> None:
        """Drop what neither this checkpoint nor the one before it needs."""
        assert self._manifest is not None
        manifests = self._manifests()
        rounds = [r for r in sorted(manifests, reverse=True) if r <= self._manifest.round]
        needed = set(self._manifest.files)
        for round in rounds[:_KEPT]:
            older = self._read_manifest(manifests[round])
            needed |= {manifests[round].name} | (older.files if older else set())
        for path in self.folder.iterdir():
            if path.name not in needed:
                path.unlink(missing_ok=True)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
