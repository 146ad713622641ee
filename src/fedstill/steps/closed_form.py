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
# The penalty on a noisy scatter, in units of the noise's largest eigenvalue. Chosen on MNIST,
# Fashion-MNIST and CIFAR-10 (docs/measurements.md): 0.1 is up to a point worse.
_NOISE_SHARE = 0.05


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
        """The scatter within classes."""
        means, counts = self.means, self.counts * self.held
        return self.second - (means.T * counts) @ means

    def penalty(self, share: float, matrix: Tensor) -> float:
        """``share`` of the mean eigenvalue, and a share of the noise's largest one."""
        size = len(matrix)
        level = max(float(matrix.trace()) / size, 1e-12)
        return share * level + _NOISE_SHARE * math.sqrt(2 * size) * self.noise


def solve(moments: Moments, head: Head, penalty: float) -> Params:
    """The linear layer of this head; logits of classes nobody holds are far below all others."""
    weight, bias = HEADS[head](moments, penalty)
    bias = torch.where(moments.held, bias, _NOBODY)
    weight = weight * moments.held[:, None]
    return {"linear.weight": weight.float(), "linear.bias": bias.float()}


def _lda(moments: Moments, penalty: float) -> tuple[Tensor, Tensor]:
    """Linear discriminant analysis: normal densities with class means and one covariance."""
    within = moments.within
    inverse = _inverse(within, moments.penalty(penalty, within)) * moments.total
    centred = moments.means - moments.mean
    weight = centred @ inverse
    prior = (moments.counts.clamp(min=_LEAST) / moments.total).log()
    bias = prior - (weight * centred).sum(1) / 2 - weight @ moments.mean
    return weight, bias


def _ridge(moments: Moments, penalty: float) -> tuple[Tensor, Tensor]:
    """Least squares to one-hot labels with a penalty on the weights, not on the bias."""
    total, mean = moments.total, moments.mean
    scatter = moments.second - total * torch.outer(mean, mean)
    inverse = _inverse(scatter, moments.penalty(penalty, scatter))
    counts = moments.counts * moments.held
    centred = (moments.means - mean) * counts[:, None]
    weight = centred @ inverse
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


def _inverse(matrix: Tensor, penalty: float) -> Tensor:
    """(positive part of the matrix + penalty)^-1: noise makes small eigenvalues negative."""
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    inverse: Tensor = (vectors / (values.clamp(min=0) + penalty)) @ vectors.T
    return inverse
