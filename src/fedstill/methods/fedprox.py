"""FedProx: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.

FedAvg, but each client minimises its loss + mu/2 ||w - w_r||^2: line 4 of FedAvg's box adds
mu (w - w_r) to every gradient. With mu = 0 it is FedAvg.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from fedstill.methods.fedavg import FedAvg
from fedstill.types import Params


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg whose clients are held near the global model."""

    mu: Annotated[float, Meta(ge=0)] = 0.01

    def correction(self, start: Params) -> Callable[[Params], Params]:
        return lambda weights: {k: (v - start[k]) * self.mu for k, v in weights.items()}
