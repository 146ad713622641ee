"""The experiment as data: everything that determines a run's result, fully resolved."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from fedstill.config.nested import Table, as_table, without_none
from fedstill.data.settings import CorruptSettings, DataSettings
from fedstill.defence.settings import DefenceSettings
from fedstill.models import DEFAULT_MODEL
from fedstill.privacy.settings import PrivacySettings

DEFAULT_PARTITION = "dirichlet:0.1"


# Those of ``fedstill.wire``, which is not imported here: it needs PyTorch.
CODEC_NAMES = [
    *(f"{kind}{packed}" for packed in ("", "+zstd") for kind in ("float32", "float16", "uint8")),
    *(f"bits{bits}{packed}" for bits in "84321" for packed in ("", "+zstd", "+context")),
]


@dataclass(frozen=True)
class WireSettings:
    """The codecs of the messages, and what clients' messages must stay within."""

    # "auto": 8 bits per pixel where clients send sets of images, else float32.
    up: Annotated[str, Meta(examples=["auto", *CODEC_NAMES])] = "auto"
    down: Annotated[str, Meta(examples=CODEC_NAMES)] = "float32"
    # Of an update or a gradient. With noise of standard deviation s, d weights have a norm of
    # s sqrt(d): a private run with much noise may need more.
    max_norm: Annotated[float, Meta(gt=0, le=1e15)] = 10_000.0
    # How far a pixel of a synthetic image may lie outside the range of real ones, in widths of it.
    pixel_slack: Annotated[float, Meta(ge=0, le=1e9)] = 100.0


@dataclass(frozen=True)
class EngineSettings:
    """Where clients run. Results depend on the threads of one computation, not on the workers."""

    name: Literal["local", "flower"] = "local"
    workers: Annotated[int, Meta(ge=1)] | None = None  # None: one per core
    threads: Annotated[int, Meta(ge=1)] = 1  # of each client
    # Fixed, so that results do not depend on the machine; and threads that wait for each other on
    # a busy machine are far slower than one.
    server_threads: Annotated[int, Meta(ge=1)] = 1
    # Of a Flower round, in seconds. None: no limit while the nodes are alive. The local engine
    # waits for every client: there it only makes the slow clients of [faults] late.
    round_timeout: Annotated[float, Meta(gt=0)] | None = None
    join_timeout: Annotated[float, Meta(gt=0)] = 120.0  # seconds to wait for nodes


Share = Annotated[float, Meta(ge=0, le=1)]


@dataclass(frozen=True)
class FaultSettings:
    """The ``[faults]`` section: what goes wrong in the local engine, to try a method out.

    Each is a share of the clients' turns, drawn for every client and round by itself from
    ``seed``. ``crashed``: the client fails before it starts. ``slow``: it takes ``slow_seconds``,
    simulated, and is late where ``engine.round_timeout`` is shorter. ``lost``: it works, and its
    answer never arrives. ``corrupt``: some bytes of its message arrive altered.
    """

    lost: Share = 0.0
    slow: Share = 0.0
    slow_seconds: Annotated[float, Meta(gt=0)] = 60.0
    crashed: Share = 0.0
    corrupt: Share = 0.0
    seed: Annotated[int, Meta(ge=0)] = 0


@dataclass(frozen=True)
class Partitioning:
    """Which records, and how they are partitioned over clients."""

    data: DataSettings = field(default_factory=DataSettings)
    partition: str = DEFAULT_PARTITION
    clients: Annotated[int, Meta(ge=1)] | None = None  # None: 10, or the data's own number
    allow_empty_clients: bool = False
    seed: Annotated[int, Meta(ge=0)] = 0


@dataclass(frozen=True)
class Experiment:
    """Everything that determines a run's result.

    ``method``, ``start`` and ``model`` are tables with a ``name``; their other keys are the
    settings of the class that the name stands for.
    """

    method: Table
    model: Table = field(default_factory=lambda: {"name": DEFAULT_MODEL})
    data: DataSettings = field(default_factory=DataSettings)
    partition: str = DEFAULT_PARTITION
    clients: Annotated[int, Meta(ge=1)] | None = None  # None: 10, or the data's own number
    allow_empty_clients: bool = False
    participation: Annotated[float, Meta(gt=0, le=1)] = 1.0
    rounds: Annotated[int, Meta(ge=1)] = 20
    # The method of the first round, if it is another one: a table like ``method``. Its weights are
    # where the method starts.
    start: Table | None = None
    # The most records that a client may claim. None: as many as the largest client has, where the
    # records are partitioned here; the public size, where privacy is on; 100,000 on nodes.
    max_records: Annotated[int, Meta(ge=1)] | None = None
    quorum: Annotated[float, Meta(gt=0, le=1)] = (
        1.0  # fraction of the sampled clients that must answer
    )
    seed: Annotated[int, Meta(ge=0)] = 0
    eval_every: Annotated[int, Meta(ge=1)] = 1
    # Of how many rounds, the last ones, the synthetic sets are kept. None: of all.
    keep_sets: Annotated[int, Meta(ge=1)] | None = None
    device: str = "cpu"
    # Of the networks' outputs in training: bfloat16 is up to twice as fast where the processor or
    # the accelerator has instructions for it. Private runs are exact.
    precision: Literal["float32", "bfloat16"] = "float32"
    corrupt: CorruptSettings = field(default_factory=CorruptSettings)
    defence: DefenceSettings = field(default_factory=DefenceSettings)
    wire: WireSettings = field(default_factory=WireSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    privacy: PrivacySettings | None = None  # None: no privacy at all
    faults: FaultSettings | None = None  # None: nothing goes wrong on purpose

    @property
    def table(self) -> Table:
        """The experiment as plain values, ready for TOML."""
        return without_none(as_table(self))

    @property
    def partitioning(self) -> Partitioning:
        """The part of it that says who holds which records."""
        return Partitioning(
            self.data, self.partition, self.clients, self.allow_empty_clients, self.seed
        )

    def needed(self, clients: int) -> int:
        """How many of the sampled clients must answer: the quorum."""
        return max(1, math.ceil(self.quorum * clients - 1e-9))
