"""Weight gradients of single records, kept small: their norms and weighted sums are all that a
private release needs."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstill.steps.arithmetic import power_of_two, row_squares
from fedstill.types import Params


@dataclass(frozen=True)
class Outer:
    """One rank-1 matrix per record, ``scale`` times a column times a row; not multiplied out.

    One of the two may be so small that its square vanishes in single precision, and the other so
    large that it matters: a server that chooses the weights can make them so. Both are divided by
    a power of two, which is exact, and ``scale`` is the product of these in double precision.
    """

    column: Tensor  # [records, out]
    row: Tensor  # [records, in]
    scale: Tensor  # float64 [records]

    @classmethod
    def of(cls, column: Tensor, row: Tensor) -> "Outer":
        (column, by_column), (row, by_row) = _near_one(column), _near_one(row)
        return cls(column, row, by_column * by_row)

    def squared_norms(self) -> Tensor:
        return row_squares(self.column) * row_squares(self.row) * self.scale.square()

    def weighted(self, shares: Tensor) -> Tensor:
        """The sum with ``shares`` [..., records]."""
        factors = (shares * self.scale).to(self.column.dtype)
        return (factors[..., None] * self.column).transpose(-2, -1) @ self.row

    def dense(self) -> Tensor:
        column = (self.column * self.scale[:, None]).to(self.column.dtype)
        return column[:, :, None] * self.row[:, None, :]


def _near_one(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows whose largest entry is between 1 and 2, and what they were divided by."""
    # Beyond these sizes the factor itself would not be a number of single precision.
    size = power_of_two(rows.abs().amax(1).clamp(2.0**-126, 2.0**126))
    return rows * size.reciprocal()[:, None], size.double()


@dataclass(frozen=True)
class Gradients:
    """Weight gradients of some records. Those of linear layers are not multiplied out: their
    norm is the product of two norms, and their weighted sum is one matrix product."""

    parts: Mapping[str, Tensor | Outer]

    def squared_norms(self) -> Tensor:
        """Per record, over all weights together."""
        squares = [
            v.squared_norms() if isinstance(v, Outer) else row_squares(v)
            for v in self.parts.values()
        ]
        return torch.stack(squares).sum(0)

    def weighted(self, shares: Tensor) -> Params:
        """Weighted sums; ``shares`` are [..., records]."""
        sums: Params = {}
        for name, v in self.parts.items():
            if isinstance(v, Outer):
                sums[name] = v.weighted(shares)
            else:
                rows = shares.to(v.dtype) @ v.flatten(1)
                sums[name] = rows.view(*shares.shape[:-1], *v.shape[1:])
        return sums

    def dense(self) -> Params:
        """[records, *shape] per weight tensor."""
        return {k: v.dense() if isinstance(v, Outer) else v for k, v in self.parts.items()}
