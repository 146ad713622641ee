"""From a request to a fully resolved experiment."""

from fedstill.config.experiment import Experiment, Partitioning
from fedstill.config.resolve import (
    changed_keys,
    check_types,
    deciding,
    resolve,
    resolve_model,
    resolve_partitioning,
    spelled_out,
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
