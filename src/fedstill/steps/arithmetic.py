"""Weights as vectors: the few operations that methods need.

Inputs are never changed, except by the function whose name says so.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedstill.types import Params

_BLOCK = 4096  # numbers of a row that are summed at a time


def zeros_like(params: Params) -> Params:
    """The zero vector of this shape."""
    return {k: torch.zeros_like(v) for k, v in params.items()}


def add(a: Params, b: Params, scale: float = 1.0) -> Params:
    """a + scale * b."""
    return _named(a, torch._foreach_add(*_pairs(a, b), alpha=scale)) if a else {}


def subtract(a: Params, b: Params) -> Params:
    """a - b."""
    return _named(a, torch._foreach_sub(*_pairs(a, b))) if a else {}


def subtract_in_place(a: Params, b: Params) -> Params:
    """a - b in the memory of a, which must be the caller's own."""
    if a:
        torch._foreach_sub_(*_pairs(a, b))
    return a


def scaled(a: Params, factor: float) -> Params:
    """factor * a."""
    return {k: v * factor for k, v in a.items()}


def weighted_sum(vectors: Sequence[Params], weights: Sequence[float]) -> Params:
    """sum_k weights[k] * vectors[k], summed in the given order."""
    total = scaled(vectors[0], weights[0])
    sums = list(total.values())
    for vector, weight in zip(vectors[1:], weights[1:], strict=True):
        # One call for all tensors: of small ones it takes less time than a call for each.
        torch._foreach_add_(sums, [vector[name] for name in total], alpha=weight)
    return total


def _pairs(a: Params, b: Params) -> tuple[list[Tensor], list[Tensor]]:
    return list(a.values()), [b[name] for name in a]


def _named(a: Params, values: Sequence[Tensor]) -> Params:
    return dict(zip(a, values, strict=True))


def norm(a: Params) -> Tensor:
    """Euclidean norm over all weights together."""
    length: Tensor = torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(v) for v in a.values()])
    )
    return length


def row_squares(v: Tensor) -> Tensor:
    """The squared norm of each row of ``v`` [rows, ...], summed in double precision.

    Blocks that fit into the processor's cache are summed in the precision of ``v``.
    """
    blocks = [torch.linalg.vecdot(b, b).double() for b in v.flatten(1).split(_BLOCK, 1)]
    return torch.stack(blocks).sum(0)


def power_of_two(size: Tensor) -> Tensor:
    """The largest power of two that is not above ``size``: to divide by it is exact."""
    return torch.ldexp(torch.ones_like(size), torch.frexp(size).exponent - 1)
