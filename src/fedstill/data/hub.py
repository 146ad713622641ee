"""Data sets of the Hugging Face hub, through flwr-datasets (the extra ``fedstill[hub]``)."""

import os
import sys
import threading
from collections.abc import Iterable
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pyarrow as pa

from fedstill.data.rows import Table
from fedstill.errors import RequestError

PATIENCE = 3.0  # seconds for the hub to answer
# Some data sets call their held-out part otherwise; the first name that exists is taken.
TEST_SPLITS = ("test", "validation", "valid")


def open_hub(
    hub_id: str, name: str, folder: str, subset: str | None = None, needs_test: bool = True
) -> tuple[list[Table], list[Table], list[Path]]:
    """Training tables, test tables, and the local files behind them (for the cache's key).

    Where no test split is needed and there is none, there are no test tables. ``folder`` is where
    a local copy would lie in ``--data-dir``.
    """
    files_wanted = ["train", "test"] if needs_test else ["train"]
    local = f"--data {folder.partition('/')[0]} --data-dir DIR, with " + " and ".join(
        f"DIR/{folder}/{split}.parquet" for split in files_wanted
    )
    if not _installed("flwr_datasets"):
        raise RequestError(
            f"data set '{name}' comes from the Hugging Face hub: "
            f"pip install 'fedstill[hub]', or give {local}"
        )
    # Both are read when the packages are imported. The first: nobody asked us to report which
    # data they use. The second: without a network, look into the download folder at once in
    # place of half a minute of retries.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    if not _hub_answers():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from flwr_datasets import FederatedDataset

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


def _installed(package: str) -> bool:
    """Whether it can be imported; nothing is imported yet."""
    if package in sys.modules:
        return sys.modules[package] is not None
    return find_spec(package) is not None


def _hub_answers(patience: float = PATIENCE) -> bool:
    """Whether anything answers at the hub's address, through the proxy if there is one.

    In a thread that nobody waits for: looking up a name may take minutes and has no time limit.
    """
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    answered: list[bool] = []

    def ask() -> None:
        try:
            with urlopen(Request(address, method="HEAD"), timeout=patience):
                answered.append(True)
        except HTTPError:  # it says no, but it is there
            answered.append(True)
        except (OSError, HTTPException, ValueError):
            answered.append(False)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(patience)
    return answered == [True]


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
