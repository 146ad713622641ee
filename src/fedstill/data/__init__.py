"""Data: where records come from, and which client holds which of them."""

from fedstill.data.arrays import arrays
from fedstill.data.cache import cache_folder
from fedstill.data.corrupt import CorruptSettings, mislabelled
from fedstill.data.dataset import Dataset
from fedstill.data.kind import kind_of
from fedstill.data.mapped import mapped
from fedstill.data.node_data import load_node_data
from fedstill.data.partition import (
    RULES,
    Partition,
    PartitionRule,
    describe,
    parse_partition,
    partition,
)
from fedstill.data.sources import SOURCES, DataSettings, Source, load
from fedstill.data.vocabulary import CHARACTERS
from fedstill.records import Records, Scaling, Split

__all__ = [
    "CHARACTERS",
    "RULES",
    "SOURCES",
    "CorruptSettings",
    "DataSettings",
    "Dataset",
    "Partition",
    "PartitionRule",
    "Records",
    "Scaling",
    "Source",
    "Split",
    "arrays",
    "cache_folder",
    "describe",
    "kind_of",
    "load",
    "load_node_data",
    "mapped",
    "mislabelled",
    "parse_partition",
    "partition",
]
