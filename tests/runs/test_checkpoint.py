import math
from pathlib import Path
from typing import Any

import pytest

from fedstill.methods.fedavg import FedAvg
from fedstill.runs.checkpoint import Checkpoints
from fedstill.runs.folder import RunFolder
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
        "client-00007-0004.safetensors",
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
    (tmp_path / "client-00007-0003.safetensors").write_bytes(b"other bytes")
    assert Checkpoints(tmp_path).load() is None


def test_every_altered_byte_of_a_manifest_is_noticed(tmp_path: Path) -> None:
    filled(tmp_path)
    path = tmp_path / "round-0003.json"
    good = path.read_bytes()
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        loaded = Checkpoints(tmp_path).load()
        filled(tmp_path)
        assert loaded == (2, b"server round 2"), f"byte {place} was altered unnoticed"


def test_a_state_that_is_damaged_while_running_is_an_error(tmp_path: Path) -> None:
    checkpoints = filled(tmp_path)
    (tmp_path / "client-00007-0002.safetensors").write_bytes(b"")
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
