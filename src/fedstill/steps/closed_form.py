"""Linear classifiers in closed form, from pooled class sums, counts and second moments."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedstill.types import Params

Head = Literal["lda", "ridge", "prototype"]

_LEAST = 0.5  # records: a class with fewer is one that nobody holds
_NOBODY = -1e4  # its logit
# Of the noise's largest eigenvalue. Chosen on MNIST, Fashion-MNIST and CIFAR-10
# (docs/measurements.md, "Statistics in one round").
_SHARE = 0.05


@dataclass(frozen=True)
class Moments:
    """Pooled statistics in double precision: sums [classes, size], counts [classes], and
    ``second`` [size, size], the sum of x x^T. ``noise``: the standard deviation of the noise on
    each entry of its triangle; ``sums_noise`` [classes]: of that on each entry of the sums."""

    sums: Tensor
    counts: Tensor
    second: Tensor
    noise: float
    sums_noise: Tensor

    @property
    def held(self) -> Tensor:
        """Which classes somebody holds."""
        return self.counts >= _LEAST

    @property
    def total(self) -> Tensor:
        return self.counts.clamp(min=0).sum().clamp(min=1)

    @property
    def mean(self) -> Tensor:
        return self.sums.sum(0) / self.total

    @property
    def means(self) -> Tensor:
        """Class means; that of a class nobody holds is the overall mean."""
        found = self.sums / self.counts.clamp(min=_LEAST)[:, None]
        return torch.where(self.held[:, None], found, self.mean)

    @property
    def within(self) -> Tensor:
        """The scatter within classes; a noisy one is steadied."""
        means, counts = self.means, self.counts * self.held
        scatter = self.second - (means.T * counts) @ means
        if not self.noise:
            return scatter
        return steadied(scatter, self.noise) + self._of_means * torch.eye(len(scatter)).to(scatter)

    @property
    def _of_means(self) -> float:
        """What the noise in the class means adds to the scatter of a record about them: around a
        mean that is known up to noise, records are expected to be as much farther away."""
        variances = (self.sums_noise / self.counts.clamp(min=_LEAST)).square() * self.held
        return float((variances * self.counts.clamp(min=0)).sum())


def solve(moments: Moments, head: Head, penalty: float) -> Params:
    """The linear layer of this head; logits of classes nobody holds are far below all others."""
    weight, bias = HEADS[head](moments, penalty)
    bias = torch.where(moments.held, bias, _NOBODY)
    weight = weight * moments.held[:, None]
    return {"linear.weight": weight.float(), "linear.bias": bias.float()}


def _lda(moments: Moments, penalty: float) -> tuple[Tensor, Tensor]:
    """Linear discriminant analysis: normal densities with class means and one covariance."""
    inverse = _inverse(moments.within, penalty) * moments.total
    centred = moments.means - moments.mean
    weight = centred @ inverse
    prior = (moments.counts.clamp(min=_LEAST) / moments.total).log()
    bias = prior - (weight * centred).sum(1) / 2 - weight @ moments.mean
    return weight, bias


def _ridge(moments: Moments, penalty: float) -> tuple[Tensor, Tensor]:
    """Least squares to one-hot labels with a penalty on the weights, not on the bias."""
    total, mean = moments.total, moments.mean
    counts = moments.counts * moments.held
    centred = moments.means - mean
    inverse = _inverse(moments.within + (centred.T * counts) @ centred, penalty)
    weight = (centred * counts[:, None]) @ inverse
    return weight, counts / total - weight @ mean


def _prototype(moments: Moments, penalty: float) -> tuple[Tensor, Tensor]:
    """The nearest class mean."""
    means = moments.means
    return means, -means.square().sum(1) / 2


HEADS: dict[Head, Callable[[Moments, float], tuple[Tensor, Tensor]]] = {
    "lda": _lda,
    "ridge": _ridge,
    "prototype": _prototype,
}


def steadied(matrix: Tensor, noise: float) -> Tensor:
    """A matrix whose triangle was released with noise of this standard deviation, made fit for
    inversion.

    Negative eigenvalues, which only noise has made, become zero. Then all grow by as much as the
    true eigenvalues are on average that are hidden among the noise's own, but by a share of the
    largest of these at least: directions that cannot be told apart are not told apart.
    """
    size = len(matrix)
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    largest = noise * math.sqrt(2 * size)  # of the noise: the edge of its semicircle
    hidden = values[values <= largest]
    level = float(hidden.mean()) if len(hidden) else 0.0
    kept: Tensor = (vectors * (values.clamp(min=0) + max(level, _SHARE * largest))) @ vectors.T
    return kept


def _inverse(matrix: Tensor, penalty: float) -> Tensor:
    """(matrix + penalty)^-1; the penalty is in units of the mean eigenvalue.

    Without one, directions in which the matrix is zero up to how clients round it (a pixel that is
    always black) give zero.
    """
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    level = max(float(values.sum()) / len(values), 1e-12)
    values = values.clamp(min=0)
    if not penalty:
        values[values <= torch.finfo(torch.float32).eps * values.max()] = torch.inf
    inverse: Tensor = (vectors / (values + penalty * level)) @ vectors.T
    return inverse
