"""The rules that deal records out to clients. Each returns the owner of every record.

Counts are drawn first and records afterwards, so that a draw which leaves a client with
nothing costs microseconds to repeat.
"""

import numpy as np
from numpy.typing import NDArray

from fedstill.errors import RequestError
from fedstill.rng import Rng

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_MOST_ATTEMPTS = 1000
_MOST_DRAWS = 10_000_000  # numbers drawn over all attempts: about a second
# Beyond this a draw is uniform to nine digits, and the sum of NumPy's gammas overflows later on.
_UNIFORM_ALPHA = 1e18


def deal_iid(records: int, clients: int, rng: Rng) -> Ints:
    """Shuffled, then dealt round: sizes differ by one at most."""
    return _scatter(rng.at("records").numpy().permutation(records), np.arange(records) % clients)


def deal_dirichlet(
    labels: Ints, alpha: float, clients: int, classes: int, rng: Rng, allow_empty: bool
) -> Ints:
    """Class by class: the clients' shares are a draw from Dirichlet(alpha, ..., alpha)."""
    in_class = np.bincount(labels, minlength=classes)
    attempts = 1 if allow_empty else _attempts(clients * classes)
    best = clients
    for attempt in range(attempts):
        shares = _dirichlet(alpha, clients, classes, rng.at("attempt", attempt))
        counts = round_shares(shares, in_class)
        empty = int((counts.sum(axis=0) == 0).sum())
        if empty == 0 or allow_empty:
            return _hand_out(labels, counts, rng)
        best = min(best, empty)
    raise RequestError(
        f"partition dirichlet:{alpha:g} leaves {best} of {clients} clients without records (the "
        f"best of {attempts} draws); use fewer clients, a larger alpha, or "
        "--set allow_empty_clients=true"
    )


def deal_classes(
    labels: Ints, per_client: int, clients: int, classes: int, rng: Rng, allow_empty: bool
) -> Ints:
    """``per_client`` classes each; a class's records are split evenly over its owners.

    As in Fed-GLOSS: 5 clients with 2 of 10 classes each are disjoint. In general every class
    has floor or ceil(clients * per_client / classes) owners.
    """
    if per_client > classes:
        raise RequestError(
            f"partition classes:{per_client}: there are only {classes} classes; "
            f"N must be {classes} or less"
        )
    if clients * per_client < classes:
        raise RequestError(
            f"partition classes:{per_client} with {clients} clients leaves "
            f"{classes - clients * per_client} of {classes} classes without an owner; use "
            f"classes:{-(-classes // clients)} or {-(-classes // per_client)} clients"
        )
    held = _deal_out_classes(per_client, clients, classes, rng.at("classes"))
    in_class = np.bincount(labels, minlength=classes)
    owners = held.sum(axis=0)
    shares = held.T / owners[:, None]
    counts = round_shares(shares, in_class)
    empty = int((counts.sum(axis=0) == 0).sum())
    if empty and not allow_empty:
        raise RequestError(
            f"partition classes:{per_client} leaves {empty} of {clients} clients without records "
            "(their classes have fewer records than owners); use fewer clients, or "
            "--set allow_empty_clients=true"
        )
    return _hand_out(labels, counts, rng)


def deal_quantity(records: int, alpha: float, clients: int, rng: Rng, allow_empty: bool) -> Ints:
    """Sizes from Dirichlet(alpha); one record each is set aside first, unless empty is fine."""
    aside = 0 if allow_empty else 1
    shares = _dirichlet(alpha, clients, 1, rng.at("sizes"))
    sizes = aside + round_shares(shares, np.array([records - aside * clients]))[0]
    shuffled = rng.at("records").numpy().permutation(records)
    return _scatter(shuffled, np.repeat(np.arange(clients), sizes))


def deal_natural(groups: NDArray[np.integer] | None, clients: int | None) -> tuple[Ints, int]:
    """The data's own owners, and how many there are."""
    if groups is None:
        raise RequestError(
            "partition natural: the data do not say whose the records are; "
            "name the column that does in data.client_column"
        )
    owners = int(groups.max()) + 1
    if clients is not None and clients != owners:
        raise RequestError(
            f"clients = {clients}: partition natural has {owners} clients, one an owner in the "
            f"data; leave clients out or set it to {owners}"
        )
    return groups.astype(np.int64), owners


def round_shares(shares: Floats, totals: Ints) -> Ints:
    """Shares [rows, parts] of ``totals`` [rows] as whole numbers that add up exactly.

    The running sum is rounded, not each share: errors never pile up, and nothing is lost.
    """
    running = np.cumsum(shares, axis=1)
    running /= running[:, -1:]
    edges = np.rint(running * totals[:, None]).astype(np.int64)
    return np.diff(edges, axis=1, prepend=0)


def _dirichlet(alpha: float, clients: int, rows: int, rng: Rng) -> Floats:
    # NumPy breaks a stick where alpha is small, so nothing underflows to 0/0, even at 1e-300.
    return rng.numpy().dirichlet(np.full(clients, min(alpha, _UNIFORM_ALPHA)), size=rows)


def _attempts(draws: int) -> int:
    return max(10, min(_MOST_ATTEMPTS, _MOST_DRAWS // draws))


def _deal_out_classes(per_client: int, clients: int, classes: int, rng: Rng) -> NDArray[np.bool_]:
    """Who holds which class, bool [clients, classes].

    Packs of all classes, each shuffled anew, are dealt from one after the other. A client at
    the seam of two packs must not get a class twice: in the new pack those it holds go last.
    """
    generator = rng.numpy()
    held = np.zeros((clients, classes), dtype=np.bool_)
    pack = generator.permutation(classes)
    for client in range(clients):
        taken, pack = pack[:per_client], pack[per_client:]
        held[client, taken] = True
        if (short := per_client - len(taken)) > 0 or len(pack) == 0:
            fresh = generator.permutation(classes)
            fresh = fresh[np.argsort(held[client, fresh], kind="stable")] if short else fresh
            held[client, fresh[:short]] = True
            pack = fresh[short:]
    return held


def _hand_out(labels: Ints, counts: Ints, rng: Rng) -> Ints:
    """Random records of each class to each client, as many as ``counts`` [classes, clients]."""
    classes, clients = counts.shape
    shuffled = rng.at("records").numpy().permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return _scatter(by_class, np.repeat(np.tile(np.arange(clients), classes), counts.ravel()))


def _scatter(order: Ints, owners: Ints) -> Ints:
    """``owners`` of the records listed in ``order``, put back into the records' own order."""
    owner = np.empty(len(order), dtype=np.int64)
    owner[order] = owners
    return owner
