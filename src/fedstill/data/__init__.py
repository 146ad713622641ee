"""Data: where records come from, and which client holds which of them."""

from typing import TYPE_CHECKING

from fedstill.imports import import_when_used

if TYPE_CHECKING:
    from fedstill.data.arrays import arrays
    from fedstill.data.catalogue import SOURCES, Source
    from fedstill.data.corrupt import mislabelled
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
    from fedstill.data.settings import CorruptSettings, DataSettings
    from fedstill.data.sources import load
    from fedstill.data.vocabulary import CHARACTERS
    from fedstill.files import cache_folder
    from fedstill.records import Records, Split
    from fedstill.scaling import Scaling

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

import_when_used(
    __name__,
    {
        "arrays": "fedstill.data.arrays",
        "cache_folder": "fedstill.files",
        "SOURCES": "fedstill.data.catalogue",
        "Source": "fedstill.data.catalogue",
        "mislabelled": "fedstill.data.corrupt",
        "Dataset": "fedstill.data.dataset",
        "kind_of": "fedstill.data.kind",
        "mapped": "fedstill.data.mapped",
        "load_node_data": "fedstill.data.node_data",
        "Partition": "fedstill.data.partition",
        "PartitionRule": "fedstill.data.partition",
        "RULES": "fedstill.data.partition",
        "describe": "fedstill.data.partition",
        "parse_partition": "fedstill.data.partition",
        "partition": "fedstill.data.partition",
        "CorruptSettings": "fedstill.data.settings",
        "DataSettings": "fedstill.data.settings",
        "load": "fedstill.data.sources",
        "CHARACTERS": "fedstill.data.vocabulary",
        "Records": "fedstill.records",
        "Split": "fedstill.records",
        "Scaling": "fedstill.scaling",
    },
)
