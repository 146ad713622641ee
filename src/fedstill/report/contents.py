"""What the page's figures are drawn from, as plain JSON values."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstill.report.source import RunView
from fedstill.report.sprites import synthetic_pages
from fedstill.runs.metrics import Confusion, Holdings, RoundMetrics

_MOST_ROWS = 200  # of the picture of who holds what: more clients are averaged in bunches
_MOST_RECORDS = 2**53  # a number that JavaScript can show
_MOST_CLIENTS = 200  # of the grid of who answered
_MOST_CLASSES = 100  # of a confusion matrix: more would be specks


def contents(run: RunView, notes: list[str]) -> dict[str, Any]:
    """Everything that is drawn. What cannot be is added to ``notes``."""
    return {
        "title": run.title,
        "rounds": [round_contents(metrics) for metrics in run.rounds],
        "holdings": _holdings(run.holdings) if run.holdings else None,
        "clients": _clients(run),
        "classes": _classes(run.confusion) if run.confusion else None,
        "details": list(dict.fromkeys(name for m in run.rounds for name in m.details)),
        "synthetic": synthetic_pages(run.synthetic, notes),
    }


def round_contents(metrics: RoundMetrics) -> dict[str, Any]:
    """A round's numbers."""
    asked = len(metrics.clients) + len(metrics.failed)
    return {
        "round": metrics.round,
        "accuracy": metrics.accuracy,
        "loss": metrics.loss,
        "up": metrics.up_bytes,
        "down": metrics.down_bytes,
        # All clients send at once, so a round lasts as long as the largest message takes.
        "slowest_up": max(metrics.uploads.values(), default=metrics.up_bytes / max(1, asked)),
        "each_down": metrics.down_bytes / max(1, asked),
        "seconds": metrics.seconds,
        "epsilon": metrics.epsilon,
        "details": metrics.details,
    }


def _holdings(holdings: Holdings) -> dict[str, Any]:
    rows = [[min(count, _MOST_RECORDS) for count in row] for row in holdings.counts]
    if not rows or not rows[0] or any(len(row) != len(rows[0]) for row in rows):
        return {"class_names": holdings.class_names, "counts": [], "bunch": 1, "clients": 0}
    counts = np.array(rows, dtype=np.float64)
    bunch = -(-len(counts) // _MOST_ROWS)
    starts = np.arange(0, len(counts), bunch)
    means = np.add.reduceat(counts, starts) / np.diff(np.append(starts, len(counts)))[:, None]
    return {
        "class_names": holdings.class_names,
        "counts": [[round(value, 1) for value in row] for row in means.tolist()],
        "bunch": bunch,
        "clients": len(counts),
    }


def _classes(confusion: Confusion) -> dict[str, Any] | None:
    """Accuracy by class, and the confusion matrix where it is small enough to be seen."""
    counts = _square(confusion)
    if counts is None:
        return None
    return {
        "names": confusion.class_names,
        "accuracy": [None if math.isnan(v) else v for v in _by_class(counts).tolist()],
        "counts": counts.astype(int).tolist() if len(counts) <= _MOST_CLASSES else None,
    }


def _square(confusion: Confusion) -> NDArray[np.float64] | None:
    """The counts, if they are what they should be: a file may say anything."""
    rows, number = confusion.counts, len(confusion.class_names)
    if not rows or len(rows) != number or any(len(row) != number for row in rows):
        return None
    bounded = [[max(0, min(count, _MOST_RECORDS)) for count in row] for row in rows]
    return np.array(bounded, dtype=np.float64)


def _by_class(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """The accuracy of each class; NaN for a class without test records."""
    held = counts.sum(1)
    shares = np.full(len(held), np.nan)
    np.divide(counts.diagonal(), held, out=shares, where=held > 0)
    return shares


def _by_client(run: RunView) -> list[float | None] | None:
    """The test accuracy at each client's mixture of classes, where both are known."""
    counts = _square(run.confusion) if run.confusion else None
    held = run.holdings.counts if run.holdings else []
    rows = [[max(0, min(count, _MOST_RECORDS)) for count in row] for row in held]
    if counts is None or not rows or any(len(row) != len(counts) for row in rows):
        return None
    shares = _by_class(counts)
    tested = ~np.isnan(shares)
    known = np.array(rows, dtype=np.float64)[:, tested]
    sums = known.sum(1)
    mixed = np.divide(known @ shares[tested], sums, out=np.full(len(sums), np.nan), where=sums > 0)
    return [None if math.isnan(value) else value for value in mixed.tolist()]


def _clients(run: RunView) -> dict[str, Any]:
    """Who was asked, who answered, and how much each one gave."""
    everyone = sorted({c for m in run.rounds for c in (*m.clients, *m.failed)})
    shown = everyone[:_MOST_CLIENTS]
    sizes = [sum(row) for row in run.holdings.counts] if run.holdings else []
    accuracy = _by_client(run)
    return {
        "ids": shown,
        "all": len(everyone),
        "answered": [sum(c in m.clients for m in run.rounds) for c in shown],
        "failed": [sum(c in m.failed for m in run.rounds) for c in shown],
        "uploaded": [sum(m.uploads.get(c, 0) for m in run.rounds) for c in shown],
        "records": [sizes[c] if 0 <= c < len(sizes) else None for c in shown],
        "accuracy": accuracy and [accuracy[c] if 0 <= c < len(accuracy) else None for c in shown],
    }
