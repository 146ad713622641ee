import math
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedstill.types import Params
from fedstill.wire import tree


@dataclass(frozen=True)
class Inner:
    images: Tensor
    label: str


@dataclass(frozen=True)
class State:
    params: Params
    memory: tuple[Inner, ...] = ()
    pair: tuple[int, float] = (1, 2.0)
    best: Inner | None = None
    flag: bool = False
    table: dict[str, int] = field(default_factory=dict)


FULL = State(
    {"a.b": torch.randn(2, 3), "c": torch.tensor(1.0)},
    (Inner(torch.randn(2), "x"), Inner(torch.zeros(0), "y")),
    (3, 0.1),
    Inner(torch.arange(3), "z"),
    True,
    {"k": 4},
)


@pytest.mark.parametrize("value", [FULL, State({}), State({"w": torch.ones(1)})])
def test_round_trip(value: State) -> None:
    again = tree.load(tree.dump(value), State)
    assert tree.dump(again) == tree.dump(value)
    assert again.pair == value.pair
    assert len(again.memory) == len(value.memory)


def test_none_and_bare_tables() -> None:
    assert tree.load(tree.dump(None), type(None)) is None
    weights = {"a": torch.ones(2)}
    assert torch.equal(tree.load(tree.dump(weights), dict)["a"], weights["a"])


def test_mapped_files_equal_read_ones(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(tree.dump(FULL))
    assert tree.dump(tree.map_file(tmp_path / "x", State)) == tree.dump(FULL)


def test_tensors_may_share_memory() -> None:
    """Two views of one array, the same tensor twice, an empty one: all are values like others."""
    whole = torch.arange(10.0)
    weights = {"a": whole[:4], "b": whole[2:], "c": whole, "d": whole, "e": whole[:0]}
    again = tree.load(tree.dump(weights), dict)
    assert all(torch.equal(again[k], weights[k]) for k in weights)


def test_something_that_is_not_data_is_refused() -> None:
    with pytest.raises(TypeError, match=r"params\.f: a function cannot be stored"):
        tree.dump({"params": {"f": lambda: None}})


@pytest.mark.parametrize(
    ("skeleton", "message"),
    [
        ({"images": "#"}, "should have the fields images, label"),
        ({"images": "#", "label": 3}, "label"),
        ({"images": None, "label": "x"}, "images should be a tensor"),
        ("nonsense", "should have the fields"),
        (None, "should have the fields"),
    ],
)
def test_a_wrong_skeleton_is_refused(skeleton: object, message: str) -> None:
    with pytest.raises(tree.MalformedError, match=message):
        tree.build(Inner, {"images": torch.ones(1)}, skeleton)


def test_wrong_containers_are_refused() -> None:
    with pytest.raises(tree.MalformedError, match="should be a list"):
        tree.build(tuple[int, ...], {}, {})
    with pytest.raises(tree.MalformedError, match="should have 2 items, not 1"):
        tree.build(tuple[int, float], {}, [1])
    with pytest.raises(tree.MalformedError, match="should be a table"):
        tree.build(dict[str, int], {}, [])
    with pytest.raises(tree.MalformedError, match="not a safetensors message"):
        tree.load(b"nothing", Inner)


@dataclass(frozen=True)
class Numbers:
    loss: float
    rest: tuple[float, ...] = ()
    best: float | None = None
    name: str = "nan"


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_floats_that_json_does_not_have_are_exact(odd: float) -> None:
    value = Numbers(odd, (1.0, odd, 0.1 + 0.2, -0.0, 5e-324), odd)
    again = tree.load(tree.dump(value), Numbers)
    assert repr(again) == repr(value)
    assert tree.load(tree.dump(Numbers(1.0)), Numbers) == Numbers(1.0)


def test_what_is_finite() -> None:
    assert tree.is_finite(FULL)
    assert tree.is_finite({"labels": torch.arange(3), "none": None, "flag": True, "big": 10**400})
    for odd in (math.nan, math.inf):
        assert not tree.is_finite(Numbers(odd))
        assert not tree.is_finite(Numbers(1.0, (2.0, odd)))
        assert not tree.is_finite({"w": torch.tensor([1.0, odd])})
