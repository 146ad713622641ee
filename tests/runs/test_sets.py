from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedstill.engine.local import InProcess
from fedstill.errors import RequestError
from fedstill.federation import Federation
from fedstill.methods import METHODS
from fedstill.observe.observer import Observer
from fedstill.records import SyntheticSet
from fedstill.runs.folder import RunFolder
from fedstill.runs.sets import SetMetadata, load_set, save_sets, set_name
from fedstill.testing import toy_experiment, toy_run
from fedstill.wire import tree
from tests.methods.small import SMALL

METADATA = SetMetadata(
    method="feddm",
    round=5,
    data="toy",
    class_names=("a", "b", "c"),
    mean=(0.5,),
    std=(0.25,),
    shape=(1, 2, 2),
)


def sets() -> dict[int, SyntheticSet]:
    return {
        4: SyntheticSet(torch.ones(2, 1, 2, 2), torch.tensor([0, 2])),
        1: SyntheticSet(torch.zeros(1, 1, 2, 2), torch.tensor([1])),
    }


def test_a_set_comes_back_in_one_call(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "round-0005.safetensors"
    save_sets(path, sets(), METADATA)
    stored = load_set(path)
    assert stored.metadata == METADATA
    assert stored.clients.tolist() == [1, 4, 4]
    assert stored.labels.tolist() == [1, 0, 2]
    assert torch.equal(stored.of(4).images, torch.ones(2, 1, 2, 2))
    assert len(stored.of(9)) == 0
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing temporary is left


def test_soft_labels_are_kept(tmp_path: Path) -> None:
    soft = torch.full((2, 3), 1 / 3)
    save_sets(tmp_path / "s", {0: SyntheticSet(torch.zeros(2, 1, 2, 2), soft)}, METADATA)
    assert torch.equal(load_set(tmp_path / "s").labels, soft)


def test_equal_sets_give_equal_bytes(tmp_path: Path) -> None:
    save_sets(tmp_path / "a", sets(), METADATA)
    save_sets(tmp_path / "b", dict(reversed(sets().items())), METADATA)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_set_needs_a_label_for_every_image() -> None:
    with pytest.raises(ValueError, match="2 images but 1 labels"):
        SyntheticSet(torch.zeros(2, 1), torch.zeros(1))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no such file or folder; name a run folder"):
        load_set(tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("labels", torch.tensor([0, 1, 9])),
        ("labels", torch.tensor([0, 1])),
        ("labels", torch.zeros(3, 2)),
        ("images", torch.full((3, 1, 2, 2), float("nan"))),
        ("images", torch.zeros(3, 4)),
        ("client", torch.tensor([-2, 0, 0], dtype=torch.int32)),
        ("client", torch.tensor([[1, 0, 0]], dtype=torch.int32)),
    ],
)
def test_wrong_tensors_are_refused(name: str, tensor: torch.Tensor, tmp_path: Path) -> None:
    path = tmp_path / "set"
    save_sets(path, sets(), METADATA)
    tensors, header = tree.unpack(path.read_bytes())
    path.write_bytes(tree.pack({**tensors, name: tensor}, header))
    with pytest.raises(RequestError, match="not a file of synthetic sets"):
        load_set(path)


def test_wrong_descriptions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "set"
    save_sets(path, sets(), METADATA)
    tensors, header = tree.unpack(path.read_bytes())
    changes: list[dict[str, Any]] = [
        {"mean": [0.1, 0.2]},
        {"round": "x"},
        {"class_names": []},
        {"shape": [-1]},
    ]
    for change in changes:
        path.write_bytes(tree.pack(tensors, {**header, **change}))
        with pytest.raises(RequestError, match="not a file of synthetic sets"):
            load_set(path)
    path.write_bytes(tree.pack({"images": tensors["images"]}, header))
    with pytest.raises(RequestError, match="not a file of synthetic sets"):
        load_set(path)


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read_never_worse(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "set"
    save_sets(path, sets(), METADATA)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    noise = data.draw(st.binary(max_size=8))
    at = data.draw(st.integers(0, len(whole)))
    for damaged in (whole[:cut], whole[:at] + noise + whole[at + len(noise) :]):
        path.write_bytes(damaged)
        with suppress(RequestError):
            load_set(path)


def test_keep_sets_keeps_the_last_rounds_alone(tmp_path: Path) -> None:
    method = METHODS["real"](**SMALL.get("real", {}))
    toy_run(method, tmp_path / "all", rounds=4)
    built = toy_experiment(method, rounds=4)
    built = replace(built, experiment=replace(built.experiment, keep_sets=2))
    federation = Federation(built, RunFolder(tmp_path / "few"), Observer())
    federation.begin()
    with InProcess(built) as engine:
        for _ in range(4):
            federation.step(engine)
    few, every = tmp_path / "few" / "synthetic", tmp_path / "all" / "synthetic"
    assert sorted(p.name for p in few.iterdir()) == [set_name(3), set_name(4)]
    assert len(list(every.iterdir())) == 4
    for path in few.iterdir():
        assert path.read_bytes() == (every / path.name).read_bytes()
