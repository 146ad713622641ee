"""Bounds of a message: norms, ranges, numbers; the setting to raise is named."""

import math
from dataclasses import dataclass

import pytest
import torch

from fedstill import wire
from fedstill.errors import WireError
from fedstill.types import Params
from fedstill.wire import tree


@dataclass(frozen=True)
class Message:
    update: Params
    updated: Params
    loss: float


SCHEMA = wire.Schema(
    Message,
    {
        "update.a": wire.TensorSpec((3,)),
        "update.b": wire.TensorSpec((1,)),
        "updated.a": wire.TensorSpec((1,), low=-1.0, high=9.0, setting="wire.pixel_slack"),
    },
    {"loss": (0.0, 10.0, "max_loss")},
    {"update": wire.NormLimit(5.0)},
)


def message(a: float = 0.0, b: float = 0.0, other: float = 9.0, loss: float = 0.0) -> Message:
    first = torch.tensor([a, 0.0, 0.0])
    return Message({"a": first, "b": torch.tensor([b])}, {"a": torch.tensor([other])}, loss)


def test_the_norm_is_that_of_the_field_as_one_vector() -> None:
    """3, 4 and 5: the bound itself is allowed, and the field ``updated`` is another."""
    data = wire.encode(message(3.0, 4.0), SCHEMA)
    assert wire.decode(data, SCHEMA).update["b"] == 4.0


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (
            message(3.0, 4.01),
            r"'update' has norm 5\.01, at most 5 is declared; if that is right, raise wire\.max_n",
        ),
        (message(3e38, 3e38), "'update' has norm 4.24e[+]38"),  # no overflow in the check itself
        (message(other=9.5), r"'updated\.a' has values outside -1 \.\. 9; .*raise wire\.pixel_sl"),
        (message(loss=11.0), r"'loss' is 11\.0, declared 0 \.\. 10; if that is right, raise max_l"),
        (message(loss=math.inf), "'loss' is inf, declared 0 .. 10"),
        (message(loss=math.nan), "'loss' is nan"),
    ],
)
def test_both_sides_refuse_what_exceeds_its_bounds(wrong: Message, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        wire.encode(wrong, SCHEMA)
    with pytest.raises(WireError, match=reason):
        wire.decode(tree.dump(wrong), SCHEMA)


def test_a_number_without_a_declared_range_is_finite_all_the_same() -> None:
    open_ended = wire.Schema(Message, SCHEMA.tensors)
    wire.encode(message(loss=1e300), open_ended)
    for odd in (math.inf, math.nan):
        with pytest.raises(WireError, match="a number is NaN or infinite"):
            wire.encode(message(loss=odd), open_ended)
        with pytest.raises(WireError, match="a number is NaN or infinite"):
            wire.decode(tree.dump(message(loss=odd)), open_ended)
