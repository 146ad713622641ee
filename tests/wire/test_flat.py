"""Messages of a fixed form: the same bytes, the same values and the same refusals as any other."""

import math
import warnings
from dataclasses import dataclass, replace

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstill import wire
from fedstill.errors import WireError
from fedstill.types import Params
from fedstill.wire import NormLimit, Schema, TensorSpec, tree
from fedstill.wire.flat import FlatForm


@dataclass(frozen=True)
class Pair:
    update: Params
    control: Params
    records: int
    loss: float


SHAPES = {"b.weight": (3, 2), "a": (4,), "b.bias": (), "c": (2, 1, 3)}
SCHEMA = Schema(
    Pair,
    {f"{field}.{k}": TensorSpec(v) for field in ("update", "control") for k, v in SHAPES.items()},
    {"records": (1, 50)},
    {"update": NormLimit(10.0)},
)
GENERAL = replace(SCHEMA, tensors={**SCHEMA.tensors, "update.a": TensorSpec(((4, 4),))})


def pair(seed: int = 0, scale: float = 1.0) -> Pair:
    draws = torch.Generator().manual_seed(seed)

    def drawn() -> Params:
        return {k: torch.randn(v, generator=draws) * scale for k, v in SHAPES.items()}

    return Pair(drawn(), drawn(), 7, 0.25)


def same(one: Pair, other: Pair) -> bool:
    mine, theirs = tree.flatten(one), tree.flatten(other)
    alike = all(torch.equal(v, theirs[0][k]) for k, v in mine[0].items())
    return alike and mine[0].keys() == theirs[0].keys() and mine[1] == theirs[1]


def test_the_form_is_fixed_where_nothing_is_open() -> None:
    assert SCHEMA.flat is not None
    assert GENERAL.flat is None
    specs = SCHEMA.tensors
    for odd in (TensorSpec((4,), low=0.0), TensorSpec((4,), torch.float64), TensorSpec((0,))):
        assert FlatForm.of({**specs, "update.a": odd}, {}) is None
    assert FlatForm.of({}, {}) is None


def test_a_field_that_is_not_in_one_piece_takes_the_general_way() -> None:
    specs = {"u": TensorSpec((1,)), "u-x": TensorSpec((1,)), "u.a": TensorSpec((1,))}
    assert FlatForm.of(specs, {"u": 1.0}) is None  # "u-x" lies between "u" and "u.a"
    assert FlatForm.of(specs, {"u": 1.0, "u.a": 1.0}) is None
    assert FlatForm.of(specs, {"other": 1.0}) is None


@pytest.mark.parametrize("codec", ["float32", "float32+zstd"])
def test_bytes_and_values_are_those_of_the_general_way(codec: str) -> None:
    message = pair()
    data = wire.encode(message, SCHEMA, codec)
    assert data == wire.encode(message, GENERAL, codec)
    assert same(wire.decode(data, SCHEMA, codec), message)
    assert same(wire.decode(data, GENERAL, codec), message)


def test_tensors_of_any_layout_and_with_gradients_are_sent() -> None:
    message = pair()
    message.update["b.weight"] = torch.arange(6.0).view(2, 3).T.requires_grad_(True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = wire.decode(wire.encode(message, SCHEMA), SCHEMA)
    assert torch.equal(got.update["b.weight"], message.update["b.weight"])
    assert not got.update["b.weight"].requires_grad


def test_nothing_is_shared_with_the_bytes() -> None:
    data = wire.encode(pair(), SCHEMA)
    one, other = wire.decode(data, SCHEMA), wire.decode(data, SCHEMA)
    one.update["a"].zero_()
    assert same(other, pair())
    assert data == wire.encode(pair(), SCHEMA)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 1e30])
@pytest.mark.parametrize("field", ["update", "control"])
def test_a_bad_value_is_refused_by_both_sides_as_before(number: float, field: str) -> None:
    bad = pair()
    getattr(bad, field)["c"][1, 0, 2] = number
    if field == "control" and number == 1e30:  # it has no bound
        assert same(wire.decode(wire.encode(bad, SCHEMA), SCHEMA), bad)
        return
    with pytest.raises(WireError) as here:
        wire.encode(bad, SCHEMA)
    with pytest.raises(WireError) as there:
        wire.encode(bad, GENERAL)
    assert str(here.value) == str(there.value)
    tensors, skeleton = tree.flatten(bad)
    forged = tree.pack(tensors, {"skeleton": skeleton})
    with pytest.raises(WireError, match=r"NaN|norm"):
        wire.decode(forged, SCHEMA)


def test_the_norm_of_a_field_is_that_of_all_its_tensors() -> None:
    message = pair()
    length = float(torch.cat([v.flatten() for v in message.update.values()]).double().norm())
    for limit, refused in ((length * (1 - 1e-9), True), (length * (1 + 1e-9), False)):
        schema = replace(SCHEMA, norms={"update": NormLimit(limit)})
        if refused:
            with pytest.raises(WireError, match="norm"):
                wire.encode(message, schema)
        else:
            wire.encode(message, schema)


@pytest.mark.parametrize(
    "value", [0.0, 1e-44, 1e-30, 1e-6, 0.04, 0.19, 0.21, 1e25, math.inf, math.nan]
)
@pytest.mark.parametrize("limit", [1e-29, 1.0, 1e26, math.inf])
def test_single_precision_decides_only_what_double_precision_would(
    value: float, limit: float
) -> None:
    form = FlatForm.of({"u": TensorSpec((25,))}, {"u": limit})
    assert form is not None
    numbers = torch.full((25,), value)
    norm = float(numbers.double().norm())
    assert form.accepts(numbers) == (math.isfinite(norm) and norm <= limit)


def test_numbers_are_checked_too() -> None:
    for bad in (replace(pair(), records=51), replace(pair(), loss=float("nan"))):
        with pytest.raises(WireError):
            wire.encode(bad, SCHEMA)
    text = wire.encode(pair(), SCHEMA).replace(b'records\\":7', b'records\\":0')
    with pytest.raises(WireError, match="records"):
        wire.decode(text, SCHEMA)


def test_a_skeleton_that_leaves_tensors_out_is_refused() -> None:
    tensors, skeleton = tree.flatten(pair())
    del skeleton["control"]["a"]
    with pytest.raises(WireError, match=r"control\.a"):
        wire.decode(tree.pack(tensors, {"skeleton": skeleton}), SCHEMA)


@given(st.data())
def test_a_changed_message_is_as_declared_or_refused(data: st.DataObject) -> None:
    """One byte of the header or of the numbers is another: both ways agree on what it is."""
    whole = bytearray(wire.encode(pair(), SCHEMA))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] = data.draw(st.integers(0, 255))
    found: list[Pair | None] = []
    for schema in (SCHEMA, GENERAL):
        try:
            found.append(wire.decode(bytes(whole), schema))
        except WireError:
            found.append(None)
    one, other = found
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert same(one, other)


def test_a_header_in_other_words_is_read_by_the_general_way() -> None:
    """Spaces after it, or another order, are as valid as ours."""
    data = wire.encode(pair(), SCHEMA)
    length = int.from_bytes(data[:8], "little")
    header = msgspec.json.decode(data[8 : 8 + length])
    turned = msgspec.json.encode(dict(reversed(header.items())))
    for text in (data[8 : 8 + length] + b" " * 16, turned):
        forged = len(text).to_bytes(8, "little") + text + data[8 + length :]
        assert same(wire.decode(forged, SCHEMA), pair())
