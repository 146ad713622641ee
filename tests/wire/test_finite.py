"""Whatever is not finite is found, in one pass over the values, wherever it stands."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedstill.errors import WireError
from fedstill.wire import Schema, TensorSpec, encode
from fedstill.wire.schema import NormLimit

ODD = [math.nan, math.inf, -math.inf]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@dataclass(frozen=True)
class Update:
    update: dict[str, Tensor]


@given(st.sampled_from(FLOATS), st.integers(1, 200), st.integers(0, 199), st.sampled_from(ODD))
def test_an_odd_value_is_found_at_every_place(
    dtype: torch.dtype, size: int, place: int, odd: float
) -> None:
    values = torch.linspace(-2, 2, size).to(dtype)
    assert TensorSpec((size,), dtype).complaint(values) is None
    values[place % size] = odd
    assert TensorSpec((size,), dtype).complaint(values) == "holds NaN or infinity"
    assert TensorSpec((size,), dtype, -9, 9).complaint(values) == "holds NaN or infinity"


@given(st.integers(1, 50), st.integers(0, 49), st.sampled_from([-3.0, 3.0]))
def test_a_value_out_of_range_is_found(size: int, place: int, far: float) -> None:
    values = torch.zeros(size)
    values[place % size] = far
    complaint = TensorSpec((size,), low=-2, high=2).complaint(values)
    assert complaint is not None
    assert complaint.startswith("has values outside -2 .. 2")
    whole = TensorSpec((size,), torch.int64, -2, 2).complaint(values.long())
    assert whole is not None
    assert TensorSpec((size,), low=-3, high=3).complaint(values) is None


@pytest.mark.parametrize("codec", ["float32", "float16", "uint8", "float32+zstd"])
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("norms", [{}, {"update": NormLimit(10.0)}])
def test_what_is_not_finite_is_not_sent(
    codec: str, odd: float, norms: dict[str, NormLimit]
) -> None:
    schema = Schema(
        Update, {"update.a": TensorSpec((3,)), "update.b": TensorSpec((2,))}, norms=norms
    )
    good = {"a": torch.ones(3), "b": torch.ones(2)}
    encode(Update(good), schema, codec)
    bad = {"a": torch.ones(3), "b": torch.tensor([1.0, odd])}
    with pytest.raises(WireError, match=r"'update[.]b' holds NaN or infinity"):
        encode(Update(bad), schema, codec)


def test_a_range_is_checked_where_a_norm_is_bounded_too() -> None:
    schema = Schema(
        Update, {"update.a": TensorSpec((2,), low=-1, high=1)}, norms={"update": NormLimit(10.0)}
    )
    with pytest.raises(WireError, match=r"outside -1 [.][.] 1"):
        encode(Update({"a": torch.tensor([0.0, 2.0])}), schema)
    wide = Schema(Update, {"update.a": TensorSpec((1,))}, norms={"update": NormLimit(10.0)})
    with pytest.raises(WireError, match="has norm 20, at most 10"):
        encode(Update({"a": torch.tensor([20.0])}), wide)


def test_what_float16_cannot_hold_is_not_sent() -> None:
    schema = Schema(Update, {"update.a": TensorSpec((1,))})
    with pytest.raises(WireError, match="too large for the codec float16"):
        encode(Update({"a": torch.tensor([1e6])}), schema, "float16")
