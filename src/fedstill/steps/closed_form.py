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
# Chosen on MNIST, Fashion-MNIST and CIFAR-10 (docs/measurements.md, "Statistics in one round").
_SMOOTHING = -0.2  # the power of the size: the width over which a density is smoothed
_EXTRA = 0.02  # of the noise's largest eigenvalue: class means are noisy too


@dataclass(frozen=True)
class Moments:
    """Pooled statistics in double precision: sums [classes, size], counts [classes], and
    ``second`` [size, size], the sum of x x^T. ``noise``: the standard deviation of the noise on
    each entry of its triangle."""

    sums: Tensor
    counts: Tensor
    second: Tensor
    noise: float

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
        """The scatter within classes; where it is noisy, what the noise lets one expect of it."""
        means, counts = self.means, self.counts * self.held
        scatter = self.second - (means.T * counts) @ means
        return cleaned(scatter, self.noise) if self.noise else scatter


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


def cleaned(matrix: Tensor, noise: float) -> Tensor:
    """What to expect of a matrix whose triangle was released with noise of this standard deviation.

    The eigenvectors stay, and each eigenvalue becomes the expectation of the true matrix along its
    vector, which follows from the density of all noisy eigenvalues alone: v - 2 s^2 H(v), with H
    the Hilbert transform of the density and 2 s the largest eigenvalue of the noise (Bun, Allez,
    Bouchaud and Potters, IEEE Trans. Inf. Theory 62, 2016). The true matrix is positive.
    """
    size = len(matrix)
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    spread = noise * math.sqrt(size / 2)  # off the diagonal the noise is 1 / sqrt(2) of it
    width = spread * size**_SMOOTHING
    apart = values[:, None] - values
    hilbert = (apart / (apart.square() + width**2)).mean(1)
    expected = values - 2 * spread**2 * hilbert
    hidden = expected[values <= 2 * spread]  # among the eigenvalues of the noise
    least = float(hidden.mean()) / 2 if len(hidden) else 0.0
    expected = expected.clamp(min=max(least, 0.0)) + _EXTRA * 2 * spread
    kept: Tensor = (vectors * expected) @ vectors.T
    return kept


def _inverse(matrix: Tensor, penalty: float) -> Tensor:
    """(matrix + penalty)^-1; the penalty is in units of the mean eigenvalue."""
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    level = max(float(values.sum()) / len(values), 1e-12)
    inverse: Tensor = (vectors / (values.clamp(min=0) + penalty * level)) @ vectors.T
    return inverse
