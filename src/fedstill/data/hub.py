"""Data sets of the Hugging Face hub, through flwr-datasets (the extra ``fedstill[hub]``)."""

import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import pyarrow as pa

from fedstill.data.rows import Table
from fedstill.errors import RequestError

# Some data sets call their held-out part otherwise; the first name that exists is taken.
TEST_SPLITS = ("test", "validation", "valid")


def open_hub(
    hub_id: str, name: str, folder: str, subset: str | None = None, needs_test: bool = True
) -> tuple[list[Table], list[Table], list[Path]]:
    """Training tables, test tables, and the local files behind them (for the cache's key).

    Where no test split is needed and there is none, there are no test tables. ``folder`` is where
    a local copy would lie in ``--data-dir``.
    """
    # Both are read when the packages are imported. The first: nobody asked us to report which
    # data they use. The second: without a network, look into the download folder at once in
    # place of half a minute of retries.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    if not _hub_has_address():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    files_wanted = ["train", "test"] if needs_test else ["train"]
    local = f"--data {folder.partition('/')[0]} --data-dir DIR, with " + " and ".join(
        f"DIR/{folder}/{split}.parquet" for split in files_wanted
    )
    try:
        from flwr_datasets import FederatedDataset
    except ImportError as error:
        raise RequestError(
            f"data set '{name}' comes from the Hugging Face hub: "
            f"pip install 'fedstill[hub]', or give {local}"
        ) from error
    try:
        # No partitioners: partitions are ours (partition/rules.py). Unshuffled: the order of the
        # records is part of the fingerprint.
        part = {} if subset is None else {"subset": subset}
        federated = FederatedDataset(dataset=hub_id, partitioners={}, shuffle=False, **part)
        splits = {"train": federated.load_split("train")}
        test = _test_split(federated, needs_test)
        if test is not None:
            splits["test"] = test
        files = [Path(f["filename"]) for split in splits.values() for f in split.cache_files]
    except Exception as error:  # no network, no such data set, no such split, a full disk...
        reason = " ".join(str(error).split()) or type(error).__name__
        raise RequestError(
            f"data set '{name}' could not be loaded from the hub ({reason[:160]}); "
            f"without a network give {local}"
        ) from error
    tables = {
        which: [stored_table(split, f"{hub_id} ({which})")] for which, split in splits.items()
    }
    return tables["train"], tables.get("test", []), files


def _hub_has_address() -> bool:
    """Whether the hub's name resolves; behind a proxy it need not, and we cannot tell."""
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    if getproxies() or host is None:
        return True
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True


def _test_split(federated: Any, needed: bool) -> Any:
    for split in TEST_SPLITS:
        try:
            return federated.load_split(split)
        except ValueError as error:
            refused = error
    if needed:
        raise refused
    return None


def stored_table(split: Any, place: str) -> Table:
    """A ``datasets.Dataset`` in its stored form: images stay encoded, so that all sources decode
    alike."""
    from datasets.table import embed_table_storage

    stored = split.with_format("arrow")

    def batches(column: str) -> Iterable[pa.Array]:
        for batch in stored.select_columns([column]).iter(batch_size=2048):
            # Some data sets keep paths of downloaded files in place of the bytes.
            yield from embed_table_storage(batch).column(0).chunks

    return Table(place, stored.features.arrow_schema, len(stored), batches)
