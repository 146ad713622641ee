"""Checkpoints that survive a kill at any moment.

A checkpoint is a small manifest, ``round-0007.json``, that names the files of the server's and
the clients' states with their SHA-256. States are written first and the manifest last, each
atomically, so a manifest that exists speaks of files that are complete. The manifests of the
last two rounds are kept: when the newest or one of its files is damaged, the one before serves.

The states of the clients that took part in a round are one file (``states.py``): however many they
are, they are forced to disk once. Of a client in several files the newest state counts. A file of
which less than half counts is given up: what counts is carried over into the round's file, so that
the folder stays below twice the size of the states, and no state is written again before as many
bytes of others were.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fedstill.errors import UNREADABLE
from fedstill.files import write_atomically
from fedstill.runs.metrics import RoundMetrics
from fedstill.runs.states import Place, Places, digest, pack, read_index

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
    clients: dict[int, StoredFile] = field(default_factory=dict)  # of older versions, one file each
    metrics: RoundMetrics | None = None  # the round's line of metrics.jsonl, which may be torn
    states: list[StoredFile] = field(default_factory=list)  # the oldest first

    @property
    def files(self) -> set[str]:
        """Every file this checkpoint needs."""
        stored = (self.server, *self.clients.values(), *self.states)
        return {each.file for each in stored}


class Checkpoints:
    """The checkpoint folder of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damaged: list[int] = []  # rounds whose checkpoint was there but not whole
        self._manifest: Manifest | None = None
        self._places: Places = {}  # of every client's newest state
        self._written: Counter[str] = Counter()  # bytes of all states of a file
        self._counting: Counter[str] = Counter()  # bytes of those that are their client's newest

    def save(
        self,
        round: int,
        server: bytes,
        clients: Mapping[int, bytes],
        metrics: RoundMetrics | None = None,
    ) -> None:
        """Make the state after ``round`` durable; ``clients`` are those that changed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        states = {client: self._state(client) for client in self._left_behind(clients)}
        new, places = self._store_states(round, {**states, **clients})
        at_server = self._store(f"server-{round:04d}.safetensors", server)
        counting = self._counted(places)
        before = self._manifest or Manifest(0, at_server)
        old = {client: file for client, file in before.clients.items() if client not in places}
        kept = [file for file in (*before.states, *new) if counting[file.file]]
        manifest = Manifest(round, at_server, old, metrics, kept)
        body = msgspec.json.encode(manifest)
        text = msgspec.json.encode({"sha256": digest(body), "manifest": msgspec.Raw(body)})
        write_atomically(self.folder / f"round-{round:04d}.json", text)
        self._manifest, self._counting = manifest, counting
        self._places |= places
        self._tidy()

    def load(self) -> tuple[int, bytes] | None:
        """Round and server state of the newest checkpoint that is whole, if there is one."""
        for round, path in sorted(self._manifests().items(), reverse=True):
            manifest = self._read_manifest(path)
            places = self._whole(manifest) if manifest and manifest.round == round else None
            server = self._read(manifest.server) if manifest and places is not None else None
            if places is not None and server is not None:
                self._manifest, self._places, self._counting = manifest, {}, Counter()
                self._counting, self._places = self._counted(places), places
                self._tidy()
                return round, server
            self.damaged.append(round)
        return None

    def client(self, client: int) -> bytes | None:
        """A client's state at the loaded or last saved checkpoint; ``None`` before its first."""
        return self._state(client) if client in self._places else None

    def _state(self, client: int) -> bytes:
        if (state := self._places[client].read(self.folder)) is None:
            raise OSError(f"{self.folder}: the state of client {client} was damaged")
        return state

    def _store_states(
        self, round: int, states: Mapping[int, bytes]
    ) -> tuple[list[StoredFile], Places]:
        """Write these states into one file; its entry for the manifest, and where each is."""
        if not states:
            return [], {}
        name = f"clients-{round:04d}.bin"
        data, index, places = pack(name, states)
        write_atomically(self.folder / name, data)
        self._written[name] = sum(place.weight for place in places.values())
        return [StoredFile(name, index)], places

    def _counted(self, places: Places) -> Counter[str]:
        """How much of every file counts, once these states have replaced those of their clients."""
        counting = self._counting.copy()
        for client, place in places.items():
            counting[place.file] += place.weight
            if client in self._places:
                counting[self._places[client].file] -= self._places[client].weight
        return counting

    def _left_behind(self, changed: Mapping[int, bytes]) -> list[int]:
        """The other clients whose states are in files of which too little will count."""
        counting = self._counting.copy()
        for client in changed:
            if client in self._places:
                counting[self._places[client].file] -= self._places[client].weight
        left: list[int] = []
        for stored in self._manifest.states if self._manifest else ():
            if 2 * counting[stored.file] < self._written[stored.file]:
                inside = read_index(self.folder, stored.file, stored.sha256) or {}
                left += [c for c in inside if c not in changed and self._in(stored.file, c)]
        return left

    def _in(self, file: str, client: int) -> bool:
        return self._places[client].file == file

    def metrics(self) -> dict[int, RoundMetrics]:
        """The metrics of the rounds whose manifests are kept, up to the loaded one."""
        last = self._manifest.round if self._manifest else 0
        kept = (self._read_manifest(p) for r, p in self._manifests().items() if r <= last)
        return {m.round: m.metrics for m in kept if m is not None and m.metrics is not None}

    def _whole(self, manifest: Manifest) -> Places | None:
        """Where every client's state is, if all of them are as the manifest says."""
        places = {client: Place(f.file, f.sha256) for client, f in manifest.clients.items()}
        self._written = Counter()
        for stored in manifest.states:
            found = read_index(self.folder, stored.file, stored.sha256)
            if found is None:
                return None
            places |= found
            self._written[stored.file] = sum(place.weight for place in found.values())
        whole = all(place.read(self.folder) is not None for place in places.values())
        return places if whole else None

    def _store(self, name: str, data: bytes) -> StoredFile:
        write_atomically(self.folder / name, data)
        return StoredFile(name, digest(data))

    def _read(self, stored: StoredFile) -> bytes | None:
        return Place(stored.file, stored.sha256).read(self.folder)

    def _read_manifest(self, path: Path) -> Manifest | None:
        class Envelope(msgspec.Struct):
            sha256: str
            manifest: msgspec.Raw

        try:
            envelope = msgspec.json.decode(path.read_bytes(), type=Envelope)
            body = bytes(envelope.manifest)
            whole = digest(body) == envelope.sha256
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
