"""What a node learns about the experiment: public facts that the server and all nodes share.

Nodes build the task from it, and refuse it if their data do not fit.
"""

from dataclasses import dataclass

import msgspec

from fedstill.build import BuiltExperiment
from fedstill.config.nested import Table
from fedstill.errors import UNREADABLE, WireError
from fedstill.version import VERSION


@dataclass(frozen=True)
class Description:
    """The experiment, and of the data only what is public: their form, not their contents."""

    version: str
    config: Table
    clients: int
    shape: tuple[int, ...]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    data_sha256: str  # of the server's data: nodes that partition the same data must have the same
    partition_sha256: str
    experiment_sha256: str

    @property
    def text(self) -> str:
        """As JSON, to be sent."""
        return msgspec.json.encode(self).decode()


def describe(built: BuiltExperiment) -> Description:
    """The description of this experiment."""
    data = built.dataset
    return Description(
        version=VERSION,
        config=built.experiment.table,
        clients=built.partition.clients,
        shape=data.shape,
        class_names=data.class_names,
        mean=data.scaling.mean,
        std=data.scaling.std,
        data_sha256=data.fingerprint,
        partition_sha256=built.partition.digest,
        experiment_sha256=built.digest,
    )


def read_description(text: str) -> Description:
    """The description that came with a message."""
    try:
        return msgspec.json.decode(text, type=Description)
    except UNREADABLE as error:
        raise WireError(f"the description of the experiment cannot be read: {error}") from error
