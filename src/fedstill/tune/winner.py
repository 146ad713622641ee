"""The best candidate as a configuration: ``fedstill run --config winner.toml fedavg``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedstill.config import resolve, spelled_out
from fedstill.config.nested import Table, as_table
from fedstill.files import write_atomically
from fedstill.runs.folder import RunFolder
from fedstill.tune.space import Candidate
from fedstill.wire import pixel_bits

# Settings that have the same name in the FedAvg family. The others (epochs, schedule and
# augmentation on the set) have no counterpart in a federated run.
_SHARED = ("learning_rate", "momentum", "batch_size", "optimiser")
# All other settings of the run that made the set are kept: the same clients, data and privacy. A
# defence judges sets and a start trains the run's own network, neither of which the winner has.
_REPLACED = ("method", "model", "rounds", "eval_every", "engine", "defence", "start")


@dataclass(frozen=True)
class Judged:
    """A complete trial and its value."""

    trial: int
    value: float
    held_out: float
    weights: int
    candidate: Candidate


def best_of(judged: Sequence[Judged]) -> Judged:
    """The best; on a tie the smallest network, which costs the fewest bytes to federate.

    A set has few images to hold out, so ties are common.
    """
    return max(judged, key=lambda one: (one.value, -one.weights, -one.trial))


def winner_table(winner: Judged, tuned: bool, run: RunFolder | None) -> Table:
    """The configuration: the network, the training if it was ``tuned``, and the run's data."""
    table: Table = {"method": {"name": "fedavg"}, "model": winner.candidate.model}
    if tuned:
        training = as_table(winner.candidate.training)
        table["method"] |= {name: training[name] for name in _SHARED}
        if winner.candidate.federated is not None:
            table["method"] |= as_table(winner.candidate.federated)
    if run is not None:
        config = spelled_out(run.read_config())
        table = {key: value for key, value in config.items() if key not in _REPLACED} | table
        wire = dict(table.get("wire", {}))
        if pixel_bits(wire.get("up", "auto")) is not None:  # the set's; the winner sends weights
            table["wire"] = {**wire, "up": "auto"}
    resolve(table)  # `run` must accept it
    return table


def write_winner(path: Path, winner: Judged, config: Table, title: str) -> None:
    """Write the configuration, with what it has no settings for as comments."""
    training: dict[str, Any] = as_table(winner.candidate.training)
    training |= as_table(winner.candidate.federated) if winner.candidate.federated else {}
    listed = ", ".join(f"{name} = {value}" for name, value in training.items())
    head = (
        f"# The best of a search on {title}.\n"
        f"# Trial {winner.trial}: {winner.value:.4f}; on held-out images {winner.held_out:.4f}.\n"
        f"# Trained on the set with {listed}.\n"
        f"# fedstill run --config {path.name} fedavg\n\n"
    )
    write_atomically(path, (head + tomli_w.dumps(config)).encode())
