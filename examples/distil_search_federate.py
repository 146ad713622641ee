"""Distil once, search at the server, federate the winner: what it gives and what it costs.

    python examples/distil_search_federate.py [--candidates 20] [--method feddm] [--out FOLDER]

The usual way to search an architecture in a federation is to train every candidate by federated
learning. The other way is to distil the clients' records into a synthetic set once, to search on
the set at the server, where nothing is sent, and to federate only the best candidate (Zhao et al.,
"DistDD", use case B, figures 4 and 5). Both ways get the same candidates here. The first takes the
one with the best test accuracy, which favours it; the second sees held-out synthetic images only.

The first table has accuracy, bytes and seconds of both; the second shows how the costs grow with
the number of candidates. Everything is kept in FOLDER, and what is there is not computed again.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fedstill
from fedstill.config.nested import Table, parse_override

# Small networks only, so that every candidate can be federated in seconds for the comparison.
SPACE: Table = {
    "model": {"name": ["convnet", "mlp"]},
    "convnet": {"width": [4, 8, 16, 32], "depth": {"low": 1, "high": 2}},
    "mlp": {"width": [16, 32, 64, 128], "depth": {"low": 0, "high": 2}},
}


@dataclass(frozen=True)
class Cost:
    """Bytes sent and seconds spent."""

    up_bytes: int = 0
    down_bytes: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.up_bytes + other.up_bytes,
            self.down_bytes + other.down_bytes,
            self.seconds + other.seconds,
        )

    @property
    def megabytes(self) -> float:
        """Both ways together."""
        return (self.up_bytes + self.down_bytes) / 1e6


@dataclass(frozen=True)
class Way:
    """One way to a trained model: its test accuracy, its network, and the whole cost."""

    accuracy: float
    network: Table
    cost: Cost


def main(arguments: Sequence[str] | None = None) -> dict[str, Way]:
    """Run both ways, print the comparison and return it."""
    options = _options(arguments)
    given = dict(parse_override(text) for text in options.set)
    _, distilling = _federate(
        options, "distilled", options.method, {}, options.distil_rounds, given
    )
    candidates, winner, searching = _search(options)
    accuracy, federating = _federate(options, "winner", "fedavg", winner, options.rounds, {})
    ways = {"distil, search, federate": Way(accuracy, winner, distilling + searching + federating)}

    default, cost = _federate(options, "default", "fedavg", {}, options.rounds, {})
    ways["no search: the default network"] = Way(default, {"name": "convnet-small"}, cost)

    full: list[Way] = []
    for number, model in enumerate(candidates):
        name = f"candidate-{number:02d}"
        accuracy, cost = _federate(options, name, "fedavg", model, options.rounds, {})
        full.append(Way(accuracy, model, cost))
    best = max(full, key=lambda way: way.accuracy)
    total = sum((way.cost for way in full), Cost())
    ways[f"search by {len(full)} federated runs"] = Way(best.accuracy, best.network, total)
    _print(ways, full, distilling, searching, federating)
    return ways


def _search(options: argparse.Namespace) -> tuple[list[Table], Table, Cost]:
    """All candidates, the best of them, and the cost of the search: time, but no bytes."""
    file = options.out / "search.json"
    if not file.exists():
        begun = time.monotonic()
        tuned = fedstill.tune(
            options.out / "distilled",
            trials=options.candidates,
            search="architecture",
            sampler="random",
            pruner="none",
            repeats=options.repeats,
            space=SPACE | {"training": {"epochs": options.epochs}},
            seed=options.seed,
            out=options.out / "search",
        )
        kept = {
            "candidates": [one.candidate.model for one in tuned.judged],
            "winner": tuned.winner.candidate.model,
            "seconds": time.monotonic() - begun,
        }
        file.write_text(json.dumps(kept))
    kept = json.loads(file.read_text())
    return kept["candidates"], kept["winner"], Cost(seconds=kept["seconds"])


def _federate(
    options: argparse.Namespace,
    name: str,
    method: str,
    model: Table,
    rounds: int,
    settings: Mapping[str, Any],
) -> tuple[float, Cost]:
    """A federated run in its own folder, resumed if it was begun."""
    folder = options.out / name
    summary = fedstill.run(
        method,
        data=options.data,
        data_dir=options.data_dir,
        partition=options.partition,
        rounds=rounds,
        workers=options.workers,
        seed=options.seed,
        out=folder,
        resume=(folder / "config.toml").exists(),
        set={**{f"model.{key}": value for key, value in model.items()}, **settings},
    ).summary
    cost = Cost(summary.up_bytes, summary.down_bytes, summary.seconds)
    return summary.accuracy or 0.0, cost


def _print(
    ways: Mapping[str, Way], full: Sequence[Way], distilling: Cost, searching: Cost, last: Cost
) -> None:
    print("| way | accuracy | MB, both ways | seconds | network |\n|---|---|---|---|---|")
    for name, way in ways.items():
        network = " ".join(str(value) for value in way.network.values())
        cost = way.cost
        print(
            f"| {name} | {100 * way.accuracy:.2f} | {cost.megabytes:.1f} | {cost.seconds:.0f} "
            f"| {network} |"
        )
    print("\n| candidates | MB on the set | MB federated | s on the set | s federated |")
    print("|---|---|---|---|---|")
    for number in sorted({1, 2, 5, 10, 20, len(full)}):
        if number <= len(full):
            each = sum((way.cost for way in full), Cost())
            share = number / len(full)
            once = distilling + last
            print(
                f"| {number} | {once.megabytes:.1f} | {each.megabytes * share:.1f} "
                f"| {once.seconds + searching.seconds * share:.0f} | {each.seconds * share:.0f} |"
            )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Distil, search, federate; and the usual way.")
    parser.add_argument("--method", default="feddm", help="what distils")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE for the distillation")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-dir")
    parser.add_argument("--partition", default="dirichlet:0.1")
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--distil-rounds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10, help="of each federated training")
    parser.add_argument("--epochs", type=int, default=30, help="per candidate, on the set")
    parser.add_argument("--repeats", type=int, default=2, help="networks per candidate")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/distil-search-federate"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
