"""An experiment handed to another process: files that it maps, and plain values."""

import sys
from pathlib import Path
from typing import Any

import msgspec

from fedstill import tree
from fedstill.config import resolve
from fedstill.data import Dataset, Partition
from fedstill.files import write_atomically
from fedstill.privacy.plan import PrivatePlan
from fedstill.setup import Setup


def lay_out(setup: Setup, folder: Path) -> dict[str, Any]:
    """Put into ``folder`` what another process needs to build the same, and say where it is."""
    write_atomically(folder / "data.safetensors", tree.dump(setup.dataset))
    setup.partition.save(folder / "partition.safetensors")
    return {
        "config": setup.experiment.table,
        "dataset": str((folder / "data.safetensors").resolve()),
        "partition": str((folder / "partition.safetensors").resolve()),
        "path": sys.path,  # a user's own modules are found as they are here
        # As text: some of a plan may be open, for which TOML has no word.
        "plan": msgspec.json.encode(setup.plan).decode(),
        "ledgers": str(setup.ledgers.resolve()) if setup.ledgers else "",
    }


def build_setup(header: dict[str, Any]) -> Setup:
    """The experiment that the parent process laid out."""
    sys.path[:] = header["path"]
    return Setup(
        resolve(header["config"]),
        tree.map_file(Path(header["dataset"]), Dataset),
        Partition.load(Path(header["partition"])),
        plan=msgspec.json.decode(header["plan"], type=PrivatePlan | None),
        ledgers=Path(header["ledgers"]) if header["ledgers"] else None,
    )
