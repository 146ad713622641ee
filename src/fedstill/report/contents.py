"""What the page's figures are drawn from, as plain JSON values."""

from typing import Any

import numpy as np

from fedstill.report.source import RunView
from fedstill.report.sprites import synthetic_pages
from fedstill.runs.metrics import Holdings, RoundMetrics

_MOST_ROWS = 200  # of the picture of who holds what: more clients are averaged in bunches
_MOST_RECORDS = 2**53  # a number that JavaScript can show
_MOST_CLIENTS = 200  # of the grid of who answered


def contents(run: RunView, notes: list[str]) -> dict[str, Any]:
    """Everything that is drawn. What cannot be is added to ``notes``."""
    return {
        "title": run.title,
        "rounds": [round_contents(metrics) for metrics in run.rounds],
        "holdings": _holdings(run.holdings) if run.holdings else None,
        "clients": _clients(run),
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


def _clients(run: RunView) -> dict[str, Any]:
    """Who was asked, who answered, and how much each one gave."""
    everyone = sorted({c for m in run.rounds for c in (*m.clients, *m.failed)})
    shown = everyone[:_MOST_CLIENTS]
    sizes = [sum(row) for row in run.holdings.counts] if run.holdings else []
    return {
        "ids": shown,
        "all": len(everyone),
        "answered": [sum(c in m.clients for m in run.rounds) for c in shown],
        "failed": [sum(c in m.failed for m in run.rounds) for c in shown],
        "uploaded": [sum(m.uploads.get(c, 0) for m in run.rounds) for c in shown],
        "records": [sizes[c] if 0 <= c < len(sizes) else None for c in shown],
    }
