"""An experiment handed over to another process: files that it maps, and plain values."""

import dataclasses
from pathlib import Path
from typing import Any

import msgspec

from fedstill.build import BuiltExperiment, assemble
from fedstill.config.resolve import resolve_with_method
from fedstill.data import Dataset, Partition
from fedstill.files import write_atomically
from fedstill.models import MLP
from fedstill.privacy.plan import PrivatePlan
from fedstill.wire import tree


def hand_over(built: BuiltExperiment, folder: Path) -> dict[str, Any]:
    """Write what another process needs to build the same into ``folder``; its description."""
    write_atomically(folder / "data.safetensors", tree.dump(built.seen))
    built.partition.save(folder / "partition.safetensors")
    return {
        "config": built.experiment.table,
        "dataset": str((folder / "data.safetensors").resolve()),
        "partition": str((folder / "partition.safetensors").resolve()),
        # As JSON: a plan may hold null, which TOML does not have.
        "plan": msgspec.json.encode(built.plan).decode(),
        "mapped": built.model.fixed is not None,
        "ledgers": str(built.ledgers.resolve()) if built.ledgers else "",
    }


def rebuild(header: dict[str, Any]) -> BuiltExperiment:
    """The experiment that ``hand_over`` described."""
    experiment, method = resolve_with_method(header["config"])
    dataset = tree.map_file(Path(header["dataset"]), Dataset)
    partition = Partition.load(Path(header["partition"]))
    plan = msgspec.json.decode(header["plan"], type=PrivatePlan | None)
    ledgers = Path(header["ledgers"]) if header["ledgers"] else None
    built = assemble(experiment, method, dataset, partition).with_plan(plan, ledgers)
    # The records have been through the network's fixed map: what is left is its head.
    head = MLP(dataset.shape, dataset.classes, depth=0) if header["mapped"] else None
    return dataclasses.replace(built, given_model=head)
