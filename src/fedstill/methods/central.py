"""Centralised training: the accuracy reachable if all records were in one place.

The same steps as FedAvg with a single client that holds everything; a round is
``local_epochs`` passes over all records. Nothing is sent, so it costs no bytes.
With privacy on it is DP-SGD: noisy means of clipped per-record gradients of Poisson samples.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedstill.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Central(FedAvg):
    """All records in one place: the upper limit, not a federation."""

    pooled: ClassVar[bool] = True
