"""Which client holds which training record."""

from typing import TYPE_CHECKING

from fedstill.imports import import_when_used

if TYPE_CHECKING:
    from fedstill.data.partition.assign import Partition, partition
    from fedstill.data.partition.rule import PartitionRule
    from fedstill.data.partition.rules import RULES, parse_partition
    from fedstill.data.partition.skew import describe

__all__ = [
    "RULES",
    "Partition",
    "PartitionRule",
    "describe",
    "parse_partition",
    "partition",
]

import_when_used(
    __name__,
    {
        "Partition": "fedstill.data.partition.assign",
        "partition": "fedstill.data.partition.assign",
        "PartitionRule": "fedstill.data.partition.rule",
        "RULES": "fedstill.data.partition.rules",
        "parse_partition": "fedstill.data.partition.rules",
        "describe": "fedstill.data.partition.skew",
    },
)
