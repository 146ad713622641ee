import math
import random
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedstill.methods.fedavg import FedAvg
from fedstill.runs.checkpoint import Checkpoints
from fedstill.runs.folder import RunFolder
from fedstill.runs.states import digest
from fedstill.testing import toy_run


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def filled(folder: Path, rounds: int = 3) -> Checkpoints:
    checkpoints = Checkpoints(folder)
    for number in range(1, rounds + 1):
        clients = {7: f"client 7 round {number}".encode()} if number != rounds else {}
        checkpoints.save(number, f"server round {number}".encode(), clients)
    return checkpoints


def test_the_newest_is_loaded_with_the_clients_of_earlier_rounds(tmp_path: Path) -> None:
    filled(tmp_path)
    again = Checkpoints(tmp_path)
    assert again.load() == (3, b"server round 3")
    assert again.client(7) == b"client 7 round 2"
    assert again.client(8) is None


def test_nothing_to_load(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "nowhere").load() is None
    assert Checkpoints(tmp_path).client(1) is None


def test_only_the_last_two_are_kept(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    assert names(tmp_path) == {
        "round-0004.json",
        "round-0005.json",
        "server-0004.safetensors",
        "server-0005.safetensors",
        "clients-0004.bin",
    }


@pytest.mark.parametrize("victim", ["server-0003.safetensors", "round-0003.json"])
@pytest.mark.parametrize("damage", ["cut", "altered", "gone", "empty"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_used(
    tmp_path: Path, victim: str, damage: str
) -> None:
    filled(tmp_path)
    path = tmp_path / victim
    data = path.read_bytes()
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "altered":
        path.write_bytes(data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])
    elif damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"")
    again = Checkpoints(tmp_path)
    assert again.load() == (2, b"server round 2")
    assert again.client(7) == b"client 7 round 2"


def test_a_damaged_client_state_is_noticed_too(tmp_path: Path) -> None:
    filled(tmp_path, 4)
    # Rounds 3 and 4 share the state that client 7 had after round 3.
    (tmp_path / "clients-0003.bin").write_bytes(b"other bytes")
    assert Checkpoints(tmp_path).load() is None


def test_every_altered_byte_of_a_manifest_is_noticed(tmp_path: Path) -> None:
    filled(tmp_path / "good")
    good = (tmp_path / "good" / "round-0003.json").read_bytes()
    for place in range(len(good)):
        # A copy: writing each anew would wait for the disk each time.
        altered = tmp_path / str(place)
        shutil.copytree(tmp_path / "good", altered)
        changed = good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :]
        (altered / "round-0003.json").write_bytes(changed)
        loaded = Checkpoints(altered).load()
        assert loaded == (2, b"server round 2"), f"byte {place} was altered unnoticed"


def test_a_state_that_is_damaged_while_running_is_an_error(tmp_path: Path) -> None:
    checkpoints = filled(tmp_path)
    (tmp_path / "clients-0002.bin").write_bytes(b"")
    with pytest.raises(OSError, match="client 7 was damaged"):
        checkpoints.client(7)


def test_leftovers_of_a_killed_write_are_swept_away(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / ".server-0004.safetensors.abc.tmp").write_bytes(b"half")
    (tmp_path / "server-0004.safetensors").write_bytes(b"no manifest speaks of me")
    assert Checkpoints(tmp_path).load() == (3, b"server round 3")
    assert not any("0004" in name for name in names(tmp_path))


def test_a_number_that_is_none_costs_no_round(tmp_path: Path) -> None:
    class Odd(FedAvg):
        def report(self, state: Any, replies: Any) -> dict[str, float]:
            return {"odd": math.nan, "endless": math.inf, "even": 2.0}

    toy_run(Odd(), tmp_path, rounds=2)
    rounds = RunFolder(tmp_path).read_metrics()
    assert [m.round for m in rounds] == [1, 2]
    assert all(m.details == {"even": 2.0} for m in rounds)


def some_states(number: int, clients: int = 40, sampled: int = 4) -> dict[int, bytes]:
    drawn = random.Random(number).sample(range(clients), sampled)
    return {client: f"{client}:{number}".encode() * 50 for client in drawn}


def test_many_rounds_of_few_clients_keep_every_newest_state_in_bounded_space(
    tmp_path: Path,
) -> None:
    checkpoints, newest, written = Checkpoints(tmp_path), dict[int, bytes](), 0
    for number in range(1, 201):
        changed = some_states(number)
        newest |= changed
        checkpoints.save(number, b"server", changed)
        latest = tmp_path / f"clients-{number:04d}.bin"
        written += latest.stat().st_size
        if number % 20 == 0:
            again = Checkpoints(tmp_path)
            assert again.load() == (number, b"server")
            for client in range(40):
                assert again.client(client) == newest.get(client)
            checkpoints = again  # a resumed run goes on in the same way
    live = sum(map(len, newest.values()))
    stored = sum(p.stat().st_size for p in tmp_path.glob("clients-*.bin"))
    assert stored < 2.5 * live + 20_000  # two manifests' files, and indices
    assert written < 2.5 * sum(len(s) for n in range(1, 201) for s in some_states(n).values())
    assert len(names(tmp_path)) < 60


def test_a_round_forces_its_states_to_disk_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr("os.fsync", calls.append)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, b"server", {1: b"a"})
    few = len(calls)
    checkpoints.save(2, b"server", dict.fromkeys(range(500), b"state"))
    assert len(calls) == 2 * few
    assert few == 6  # a file and its folder: states, server, manifest


@pytest.mark.parametrize("place", ["length", "index", "state", "end"])
def test_every_part_of_the_file_of_states_is_checked(tmp_path: Path, place: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, b"server 1", {1: b"one", 2: b"two"})
    checkpoints.save(2, b"server 2", {3: b"three"})
    path = tmp_path / "clients-0002.bin"
    data = bytearray(path.read_bytes())
    where = {"length": 0, "index": 12, "state": len(data) - 3, "end": len(data) - 1}[place]
    data[where] ^= 1
    path.write_bytes(data)
    again = Checkpoints(tmp_path)
    assert again.load() == (1, b"server 1")
    assert again.client(2) == b"two"
    assert again.client(3) is None


def test_a_save_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, b"server 1", {1: b"one"})

    def full(path: Path, data: bytes) -> None:
        if path.suffix == ".json":
            raise OSError(28, "No space left on device")
        path.write_bytes(data)

    with monkeypatch.context() as patch:
        patch.setattr("fedstill.runs.checkpoint.write_atomically", full)
        with pytest.raises(OSError, match="No space"):
            checkpoints.save(2, b"server 2", {1: b"two"})
    assert checkpoints.client(1) == b"one"
    assert Checkpoints(tmp_path).load() == (1, b"server 1")
    checkpoints.save(2, b"server 2", {1: b"again"})
    assert Checkpoints(tmp_path).load() == (2, b"server 2")


def test_checkpoints_of_an_older_version_are_resumed(tmp_path: Path) -> None:
    """One file for each client's state."""
    for name, data in {
        "server-0001.safetensors": b"server 1",
        "client-00004-0001.bin": b"4",
    }.items():
        (tmp_path / name).write_bytes(data)

    def stored(name: str) -> dict[str, str]:
        return {"file": name, "sha256": digest((tmp_path / name).read_bytes())}

    manifest = {
        "round": 1,
        "server": stored("server-0001.safetensors"),
        "clients": {"4": stored("client-00004-0001.bin")},
        "metrics": None,
    }
    body = msgspec.json.encode(manifest)
    text = msgspec.json.encode({"sha256": digest(body), "manifest": msgspec.Raw(body)})
    (tmp_path / "round-0001.json").write_bytes(text)
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.load() == (1, b"server 1")
    assert checkpoints.client(4) == b"4"
    for number in (2, 3, 4):
        checkpoints.save(number, b"server", {5: b"5"})
    again = Checkpoints(tmp_path)
    assert again.load() == (4, b"server")
    assert again.client(4) == b"4"
    checkpoints.save(5, b"server", {4: b"new"})
    checkpoints.save(6, b"server", {})
    assert Checkpoints(tmp_path).load() == (6, b"server")
    assert checkpoints.client(4) == b"new"
    assert "client-00004-0001.bin" not in names(tmp_path)
