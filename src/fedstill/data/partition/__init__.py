"""Which client holds which training record."""

from fedstill.data.partition.assign import Partition, partition
from fedstill.data.partition.rule import PartitionRule
from fedstill.data.partition.rules import RULES, parse_partition
from fedstill.data.partition.skew import describe

__all__ = ["RULES", "Partition", "PartitionRule", "describe", "parse_partition", "partition"]
