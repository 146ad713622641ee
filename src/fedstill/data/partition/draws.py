"""Random shares, and the records that are drawn for them.

Counts are drawn first and records afterwards, so that repeating a draw that leaves a client empty
costs microseconds.
"""

import numpy as np
from numpy.typing import NDArray

from fedstill.data.partition.rule import Ints
from fedstill.rng import Rng

Floats = NDArray[np.float64]

# Beyond this a draw is uniform to nine digits, and the sum of NumPy's gammas overflows later on.
_UNIFORM_ALPHA = 1e18


def dirichlet_shares(alpha: float, clients: int, rows: int, rng: Rng) -> Floats:
    """Shares [rows, clients]: each row is a draw from Dirichlet(alpha, ..., alpha)."""
    # NumPy breaks a stick where alpha is small, so nothing underflows to 0/0, even at 1e-300.
    return rng.numpy().dirichlet(np.full(clients, min(alpha, _UNIFORM_ALPHA)), size=rows)


def round_shares(shares: Floats, totals: Ints) -> Ints:
    """Shares [rows, parts] of ``totals`` [rows] as whole numbers that add up exactly.

    The running sum is rounded, not each share: errors do not accumulate, and nothing is lost.
    """
    running = np.cumsum(shares, axis=1)
    running /= running[:, -1:]
    edges = np.rint(running * totals[:, None]).astype(np.int64)
    return np.diff(edges, axis=1, prepend=0)


def shuffled(records: int, owners: Ints, rng: Rng) -> Ints:
    """``owners`` in random order over the records."""
    return _in_record_order(rng.at("records").numpy().permutation(records), owners)


def by_class(labels: Ints, counts: Ints, rng: Rng) -> Ints:
    """Random records of each class for each client, as many as ``counts`` [classes, clients]."""
    classes, clients = counts.shape
    order = rng.at("records").numpy().permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    return _in_record_order(order, np.repeat(np.tile(np.arange(clients), classes), counts.ravel()))


def _in_record_order(order: Ints, owners: Ints) -> Ints:
    """``owners`` of the records listed in ``order``, sorted by record."""
    owner = np.empty(len(order), dtype=np.int64)
    owner[order] = owners
    return owner
