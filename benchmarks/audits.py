"""The audit's lower bounds for every private method, as a table: one audit per cell, one process.

    python benchmarks/audits.py --epsilon 1 3 8

Settings make the methods fast; a cell is what `fedstill audit METHOD --epsilon E --set ...` prints.
"""

import argparse
import time
from typing import Any

from fedstill.evaluate.audited import method_target
from fedstill.methods import METHODS
from fedstill.privacy.audit import Audit, AuditSettings, audit

FAST: dict[str, dict[str, Any]] = {
    "fedgloss": {"trajectories": 1, "real_batches": 2},
    "feddualmatch, layer_wise=false": {"layer_wise": False},
    "feddm, target=gradient": {"target": "gradient"},
}


def rows() -> list[str]:
    private = [name for name, cls in METHODS.items() if cls().private_form(1.0) is not None]
    return sorted({*private, *FAST})


def cell(row: str, epsilon: float, q: float, rounds: int, settings: AuditSettings) -> Audit:
    name = row.partition(",")[0]
    request = {
        "method": {"name": name, **FAST.get(row, {})},
        "rounds": rounds,
        "privacy": {"epsilon": epsilon, "delta": 1e-5, "sampling_rate": q},
    }
    return audit(method_target(request, settings.canaries), settings)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0, 8.0])
    parser.add_argument("--q", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--canaries", type=int, default=10_000)
    parser.add_argument("--only", nargs="+")
    options = parser.parse_args()
    settings = AuditSettings(options.canaries)
    claims = " | ".join(f"claim {e:g}" for e in options.epsilon)
    print(f"| method | accesses | {claims} | CPU seconds per audit |")
    print("|---|---|" + "---|" * len(options.epsilon) + "---|")
    for row in options.only or rows():
        begin, cells, accesses = time.process_time(), [], 0
        for epsilon in options.epsilon:
            found = cell(row, epsilon, options.q, options.rounds, settings)
            gaussian, guesses = found.findings[0].bound, found.findings[1].bound
            mark = "" if found.verdict == "not refuted" else f" ({found.verdict})"
            cells.append(f"{gaussian:.2f} / {guesses:.2f}{mark}")
            accesses = found.accesses
        seconds = (time.process_time() - begin) / len(options.epsilon)
        print(f"| `{row}` | {accesses} | {' | '.join(cells)} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
