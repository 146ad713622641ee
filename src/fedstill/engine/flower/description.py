"""What a node learns about the experiment: public facts that the server and all nodes share.

Nodes build the task from it, and refuse it if their data do not fit. It is checked against the
types below, and its ``config`` like any configuration: a server may be hostile.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from fedstill.config.nested import Table
from fedstill.data.column import Column
from fedstill.errors import UNREADABLE, WireError
from fedstill.version import VERSION

if TYPE_CHECKING:
    from fedstill.build import BuiltExperiment

# A fingerprint names a folder on the node: nothing but these digits may be in it.
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Columns = Annotated[tuple[Column, ...], Meta(max_length=100_000)]
Constants = Annotated[tuple[float, ...], Meta(max_length=16)]


@dataclass(frozen=True)
class Description:
    """The experiment, and of the data only what is public: their form, not their contents."""

    version: Annotated[str, Meta(max_length=100)]
    config: Table
    clients: Annotated[int, Meta(ge=1, le=2**31)]
    shape: Annotated[tuple[Annotated[int, Meta(ge=1, le=2**31)], ...], Meta(max_length=4)]
    class_names: Annotated[
        tuple[Annotated[str, Meta(max_length=1000)], ...], Meta(min_length=1, max_length=10**6)
    ]
    mean: Constants
    std: Constants
    data_sha256: Sha256  # of the server's: nodes that partition the same data must have the same
    partition_sha256: Sha256
    experiment_sha256: Sha256
    columns: Columns = ()  # of a table: what its features are

    @property
    def text(self) -> str:
        """As JSON, to be sent."""
        return msgspec.json.encode(self).decode()


def describe(built: "BuiltExperiment") -> Description:
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
        columns=data.columns,
    )


def read_description(text: str) -> Description:
    """The description that came with a message."""
    try:
        return msgspec.json.decode(text, type=Description)
    except UNREADABLE as error:
        raise WireError(f"the description of the experiment cannot be read: {error}") from error
