"""Distil once, search at the server, federate the winner: what it gives and what it costs.

    python examples/distil_search_federate.py [--candidates 20] [--method feddm] [--out FOLDER]

The usual way to search an architecture in a federation is to train every candidate by federated
learning. The other way is to distil the clients' records into a synthetic set once, to search on
the set at the server, where nothing is sent, and to federate only the best candidate (Zhao et al.,
"DistDD", use case B, figures 4 and 5). Both ways get the same candidates here. The first takes the
one with the best test accuracy, which favours it; the second sees held-out synthetic images only.

The first table has accuracy, bytes and seconds of both. The second has the accuracy by the number
of candidates tried (the paper's figure 4), the third the costs (its figure 5). Everything is kept
in FOLDER, and what is there is not computed again. The paper's own method: --method distdd.
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


@dataclass(frozen=True)
class Found:
    """What the search on the set made of its candidates, in the order in which they were tried."""

    candidates: list[Table]
    held_out: list[float]
    weights: list[int]
    seconds: float

    def best_of(self, number: int) -> int:
        """The best of the first ``number`` by held-out images; the smallest network on a tie."""
        return max(range(number), key=lambda i: (self.held_out[i], -self.weights[i], -i))


def main(arguments: Sequence[str] | None = None) -> dict[str, Way]:
    """Run both ways, print the comparison and return it."""
    options = _options(arguments)
    given = dict(parse_override(text) for text in options.set)
    _, distilling = _federate(
        options, "distilled", options.method, {}, options.distil_rounds, given
    )
    found = _search(options)
    winner = found.candidates[found.best_of(len(found.candidates))]
    searching = Cost(seconds=found.seconds)
    accuracy, federating = _federate(options, "winner", "fedavg", winner, options.rounds, {})
    ways = {"distil, search, federate": Way(accuracy, winner, distilling + searching + federating)}

    default, cost = _federate(options, "default", "fedavg", {}, options.rounds, {})
    ways["no search: the default network"] = Way(default, {"name": "convnet-small"}, cost)

    full: list[Way] = []
    for number, model in enumerate(found.candidates):
        name = f"candidate-{number:02d}"
        accuracy, cost = _federate(options, name, "fedavg", model, options.rounds, {})
        full.append(Way(accuracy, model, cost))
    best = max(full, key=lambda way: way.accuracy)
    total = sum((way.cost for way in full), Cost())
    ways[f"search by {len(full)} federated runs"] = Way(best.accuracy, best.network, total)
    _print(ways)
    _print_by_candidates(options, found, full, default)
    _print_costs(full, distilling, searching, federating)
    return ways


def _search(options: argparse.Namespace) -> Found:
    """The search on the set. It costs time, but no bytes."""
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
            "held_out": [one.value for one in tuned.judged],
            "weights": [one.weights for one in tuned.judged],
            "seconds": time.monotonic() - begun,
        }
        file.write_text(json.dumps(kept))
    return Found(**json.loads(file.read_text()))


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
        clients=options.clients,
        rounds=rounds,
        workers=options.workers,
        seed=options.seed,
        out=folder,
        resume=(folder / "config.toml").exists(),
        set={**{f"model.{key}": value for key, value in model.items()}, **settings},
    ).summary
    cost = Cost(summary.up_bytes, summary.down_bytes, summary.seconds)
    return summary.accuracy or 0.0, cost


def _on_the_set(options: argparse.Namespace, number: int, model: Table) -> float:
    """Test accuracy of a network that is trained on the set alone."""
    file = options.out / f"on-the-set-{number:02d}.json"
    if not file.exists():
        name = model["name"]
        settings = {f"{name}.{key}": value for key, value in model.items() if key != "name"}
        scored = fedstill.evaluate(
            options.out / "distilled", models=[name], networks=options.repeats, set=settings
        )
        file.write_text(json.dumps(scored.set[0].summary["accuracy"]))
    return float(json.loads(file.read_text()))


def _print(ways: Mapping[str, Way]) -> None:
    print("| way | accuracy | MB, both ways | seconds | network |\n|---|---|---|---|---|")
    for name, way in ways.items():
        network = " ".join(str(value) for value in way.network.values())
        cost = way.cost
        print(
            f"| {name} | {100 * way.accuracy:.2f} | {cost.megabytes:.1f} | {cost.seconds:.0f} "
            f"| {network} |"
        )


def _print_by_candidates(
    options: argparse.Namespace, found: Found, full: Sequence[Way], default: float
) -> None:
    """Figure 4: accuracy of the best network so far, by the number of candidates tried."""
    print("\n| candidates | best so far on the set: trained on the set | federated |", end="")
    print(" best so far federated | default network |\n|---|---|---|---|---|")
    for number in _numbers(full):
        best = found.best_of(number)
        shown = (
            _on_the_set(options, best, found.candidates[best]),
            full[best].accuracy,
            max(way.accuracy for way in full[:number]),
            default,
        )
        print(f"| {number} | " + " | ".join(f"{100 * accuracy:.2f}" for accuracy in shown) + " |")


def _print_costs(full: Sequence[Way], distilling: Cost, searching: Cost, last: Cost) -> None:
    """Figure 5: what a search costs, by the number of candidates; an average one each."""
    print("\n| candidates | MB on the set | MB federated | s on the set | s federated |")
    print("|---|---|---|---|---|")
    once, total = distilling + last, sum((way.cost for way in full), Cost())
    for number in _numbers(full):
        share = number / len(full)
        print(
            f"| {number} | {once.megabytes:.1f} | {total.megabytes * share:.1f} "
            f"| {once.seconds + searching.seconds * share:.0f} | {total.seconds * share:.0f} |"
        )


def _numbers(full: Sequence[Way]) -> list[int]:
    return [n for n in sorted({1, 2, 5, 10, 20, len(full)}) if n <= len(full)]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Distil, search, federate; and the usual way.")
    parser.add_argument("--method", default="feddm", help="what distils")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE for the distillation")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-dir")
    parser.add_argument("--partition", default="dirichlet:0.1")
    parser.add_argument("--clients", type=int, default=10)
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
