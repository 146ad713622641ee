"""Which client holds which training record."""

from fedstill.data.partition.assign import Partition, partition
from fedstill.data.partition.skew import describe
from fedstill.data.partition.spec import (
    Classes,
    Dirichlet,
    Iid,
    Natural,
    Nodes,
    PartitionSpec,
    Quantity,
    parse_partition,
)

__all__ = [
    "Classes",
    "Dirichlet",
    "Iid",
    "Natural",
    "Nodes",
    "Partition",
    "PartitionSpec",
    "Quantity",
    "describe",
    "parse_partition",
    "partition",
]
