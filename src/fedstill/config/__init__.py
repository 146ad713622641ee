"""From a request to a fully resolved experiment."""

from typing import TYPE_CHECKING

from fedstill.imports import import_when_used

if TYPE_CHECKING:
    from fedstill.config.experiment import Experiment, Partitioning
    from fedstill.config.request import check_types, spelled_out
    from fedstill.config.resolve import (
        changed_keys,
        deciding,
        resolve,
        resolve_model,
        resolve_partitioning,
    )

__all__ = [
    "Experiment",
    "Partitioning",
    "changed_keys",
    "check_types",
    "deciding",
    "resolve",
    "resolve_model",
    "resolve_partitioning",
    "spelled_out",
]

import_when_used(
    __name__,
    {
        "Experiment": "fedstill.config.experiment",
        "Partitioning": "fedstill.config.experiment",
        "check_types": "fedstill.config.request",
        "spelled_out": "fedstill.config.request",
        "changed_keys": "fedstill.config.resolve",
        "deciding": "fedstill.config.resolve",
        "resolve": "fedstill.config.resolve",
        "resolve_model": "fedstill.config.resolve",
        "resolve_partitioning": "fedstill.config.resolve",
    },
)
