"""Centralised training: what could be had if all records lay in one place.

The same steps as FedAvg with a single client that holds everything; a round is
``local_epochs`` passes over all records. Nothing travels, so it costs no bytes.
With privacy on it is DP-SGD: noisy means of the clipped gradients of Poisson samples of them all.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedstill.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Central(FedAvg):
    """All records in one place: the upper limit, not a federation."""

    pooled: ClassVar[bool] = True
