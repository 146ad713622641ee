"""Sums over records that determine a linear classifier: class sums, counts and scatter.

The scatter of vectors r is the sum of r r^T, a symmetric matrix, kept as its upper triangle with
the entries off the diagonal times sqrt(2). The norm of that vector is the matrix's Frobenius norm:
for one record it is |r|^2, so a record clipped to norm rho changes the sum by at most rho^2.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fedstill.records import Records
from fedstill.types import Params

_ROOT = math.sqrt(2.0)


def triangle_size(size: int) -> int:
    """Entries of the upper triangle of a matrix of this size."""
    return size * (size + 1) // 2


@lru_cache(maxsize=4)
def _places(size: int) -> tuple[Tensor, Tensor]:
    rows, columns = torch.triu_indices(size, size)
    return rows, columns


def triangle(matrix: Tensor) -> Tensor:
    """Upper triangles [..., entries] of symmetric matrices [..., size, size], norms kept."""
    rows, columns = _places(matrix.shape[-1])
    scale = torch.where(rows == columns, 1.0, _ROOT).to(matrix)
    return matrix[..., rows, columns] * scale


def symmetric(entries: Tensor, size: int) -> Tensor:
    """The matrix of an upper triangle: the inverse of ``triangle``."""
    rows, columns = _places(size)
    values = entries / torch.where(rows == columns, 1.0, _ROOT).to(entries)
    matrix = entries.new_zeros(size, size)
    matrix[rows, columns] = values
    matrix[columns, rows] = values
    return matrix


@dataclass(frozen=True)
class OuterProducts:
    """One vector per record: the triangle of r r^T, never multiplied out for a single record."""

    rows: Tensor  # [records, size]

    def squared_norms(self) -> Tensor:
        return self.rows.double().square().sum(1).square()

    def weighted(self, shares: Tensor) -> Params:
        rows = self.rows.double()
        products = (shares.double()[..., None, :] * rows.T) @ rows
        return {"scatter": triangle(products)}

    def dense(self) -> Params:
        return {"scatter": triangle(self.rows[:, :, None] * self.rows[:, None, :])}


@dataclass(frozen=True)
class Scaled:
    """Maps records to their vectors, times a factor."""

    factor: float

    def __call__(self, records: Records) -> Params:
        return {"sum": records.all()[0] * self.factor}


@dataclass(frozen=True)
class Residuals:
    """Maps records to the outer products of their distances from the mean of their class.

    ``means`` [classes, size] has a row for every class of the task.
    """

    means: Tensor

    def __call__(self, records: Records) -> OuterProducts:
        x, labels = records.all()
        return OuterProducts(x - self.means[labels])


def class_sums(records: Records, classes: int, chunk: int = 1024) -> tuple[Tensor, Tensor]:
    """Sums [classes, size] and counts [classes] of all records, in double precision."""
    size = records.split.inputs.shape[1]
    sums = torch.zeros(classes, size, dtype=torch.float64, device=records.device)
    for part in torch.arange(len(records)).split(chunk):
        x, labels = records.take(part)
        sums.index_add_(0, labels, x.double())
    counts = torch.bincount(records.labels, minlength=classes).to(sums)
    return sums, counts


def scatter_about(records: Records, means: Tensor, chunk: int = 1024) -> Tensor:
    """The scatter of all records about the means of their classes, as a triangle."""
    size = means.shape[1]
    total = torch.zeros(size, size, dtype=torch.float64, device=means.device)
    for part in torch.arange(len(records)).split(chunk):
        x, labels = records.take(part)
        rows = x.double() - means[labels]
        total += rows.T @ rows
    return triangle(total)
