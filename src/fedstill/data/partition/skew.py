"""How uneven a partition is, in numbers."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Counts = NDArray[np.int64]


def as_counts(counts: Tensor | NDArray[np.integer]) -> Counts:
    """Records of each class at each client as an int64 array [clients, classes]."""
    array = counts.cpu().numpy() if isinstance(counts, Tensor) else np.asarray(counts)
    return array.astype(np.int64)


def describe(counts: Tensor | NDArray[np.integer]) -> dict[str, float]:
    """Skew of a partition from its counts [clients, classes].

    Label entropy is in bits, averaged over the clients that hold anything: 0 when each holds
    one class, ``label_entropy_all`` (the entropy of all records together) when all are alike.
    """
    table = as_counts(counts)
    sizes = table.sum(axis=1)
    kinds = (table > 0).sum(axis=1)
    return {
        "clients": len(table),
        "empty_clients": int((sizes == 0).sum()),
        "records": int(sizes.sum()),
        "records_min": int(sizes.min()),
        "records_median": float(np.median(sizes)),
        "records_max": int(sizes.max()),
        "classes_min": int(kinds.min()),
        "classes_median": float(np.median(kinds)),
        "classes_max": int(kinds.max()),
        "label_entropy": float(_entropy(table[sizes > 0]).mean()) if sizes.any() else 0.0,
        "label_entropy_all": float(_entropy(table.sum(axis=0, keepdims=True))[0]),
    }


def _entropy(table: Counts) -> NDArray[np.float64]:
    share = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    log = np.log2(share, out=np.zeros_like(share), where=share > 0)
    entropy: NDArray[np.float64] = np.abs((share * log).sum(axis=1))  # abs: no negative zero
    return entropy
