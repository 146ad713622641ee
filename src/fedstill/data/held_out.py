"""Which records are for the test, where the data do not come in two files."""

import warnings

import numpy as np
from numpy.typing import NDArray

from fedstill.errors import RequestError
from fedstill.rng import Rng

SHARE = 0.2
TRAIN, _TEST = ("train", "training"), ("test", "testing")
_NEITHER = ("val", "valid", "validation", "dev")

Flags = NDArray[np.bool_]


def hold_out_evenly(
    labels: NDArray[np.generic], owners: NDArray[np.generic] | None, share: float, seed: int
) -> Flags:
    """A random share of every class of every owner.

    The stream is that of ``data.split_seed`` and not the run's: runs of several seeds are tested on
    the same records.
    """
    _, stratum = np.unique(labels, return_inverse=True)
    if owners is not None:
        _, owner = np.unique(owners, return_inverse=True)
        _, stratum = np.unique(owner * (int(stratum.max()) + 1) + stratum, return_inverse=True)
    order = Rng(seed).at("hold-out").numpy().permutation(len(labels))
    order = order[np.argsort(stratum[order], kind="stable")]
    sizes = np.bincount(stratum)
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    most = np.floor(sizes * share + 0.5).astype(np.int64)
    held = np.zeros(len(labels), dtype=np.bool_)
    held[order] = rank < np.repeat(np.minimum(most, sizes - 1), sizes)
    return held


def say_held_out(place: str, share: float, owners: bool) -> None:
    """Tell the user that the test split is ours."""
    of_each = "of every class of every client" if owners else "of every class"
    warnings.warn(
        f"{place}: no test split; {share:.0%} {of_each}, chosen by data.split_seed, is held out "
        "for the test (data.split_column names a split of your own)",
        stacklevel=2,
    )


def by_column(values: NDArray[np.generic], column: str, place: str) -> tuple[Flags, Flags]:
    """Training and test rows by a column that says so; validation rows are in neither."""
    words = np.char.lower(values.astype(np.str_))
    known = np.isin(words, (*TRAIN, *_TEST, *_NEITHER))
    if not known.all():
        row = int(np.flatnonzero(~known)[0])
        raise RequestError(
            f"{place}: column '{column}' is '{values[row]}' in row {row} (counting from 0); "
            "data.split_column needs the values train and test"
        )
    train, test = np.isin(words, TRAIN), np.isin(words, _TEST)
    for rows, what in ((train, "train"), (test, "test")):
        if not rows.any():
            raise RequestError(
                f"{place}: column '{column}' is '{what}' in no row; "
                "data.split_column needs the values train and test"
            )
    if left := int((~train & ~test).sum()):
        warnings.warn(
            f"{place}: {left:,} rows whose '{column}' is neither train nor test are left out",
            stacklevel=2,
        )
    return train, test
