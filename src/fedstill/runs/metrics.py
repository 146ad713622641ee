"""What a run measured: one line per round, a summary, and which client holds which records."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fedstill.defence.judge import Verdict


@dataclass(frozen=True)
class RoundMetrics:
    """A line of ``metrics.jsonl``. Bytes and seconds are this round's alone.

    ``accuracy`` and ``loss`` are of the test split, ``None`` in a round without evaluation.
    ``failed`` gives the reason for every sampled client whose reply is not in the model.
    ``details`` are numbers of the method, and ``accuracy/DOMAIN`` where the test records have
    domains. ``defence`` has a verdict on every client's set where there is one; a client that it
    dropped is neither among ``clients`` nor among the failed. ``epsilon`` is the worst client's, of
    everything taken from its records so far. ``uploads`` are the bytes that each client sent.
    """

    round: int
    accuracy: float | None
    loss: float | None
    up_bytes: int
    down_bytes: int
    seconds: float
    epsilon: float | None
    clients: list[int]
    failed: dict[int, str] = field(default_factory=dict)
    details: dict[str, float] = field(default_factory=dict)
    defence: dict[int, Verdict] = field(default_factory=dict)
    delta: float | None = None  # of epsilon
    accountant: str | None = None
    uploads: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary:
    """``summary.json``. Bytes and seconds are the whole run's; accuracy is the last measured."""

    method: str
    data: str
    clients: int
    partition: str
    seed: int
    rounds_done: int
    accuracy: float | None
    best_accuracy: float | None
    loss: float | None
    up_bytes: int
    down_bytes: int
    seconds: float
    epsilon: float | None
    delta: float | None
    status: str
    model: str
    model_size: int
    data_sha256: str | None  # of a private run, never published: see ``unpublished``
    partition_sha256: str | None
    experiment_sha256: str  # of the settings, the scaling and the network: what decides the bits
    version: str
    details: dict[str, float] = field(default_factory=dict)  # of the round that was measured last
    accountant: str | None = None  # of epsilon
    privacy: str | None = None  # what epsilon guarantees, as a sentence
    owners: str | None = None  # of partition natural: whose records became clients

    def after(self, history: "Sequence[RoundMetrics]", status: str) -> "Summary":
        """The same run after these rounds."""
        measured = [m for m in history if m.accuracy is not None]
        return replace(
            self,
            rounds_done=history[-1].round if history else 0,
            accuracy=measured[-1].accuracy if measured else None,
            best_accuracy=max(
                (m.accuracy for m in measured if m.accuracy is not None), default=None
            ),
            loss=measured[-1].loss if measured else None,
            details=measured[-1].details if measured else {},
            up_bytes=sum(m.up_bytes for m in history),
            down_bytes=sum(m.down_bytes for m in history),
            seconds=sum(m.seconds for m in history),
            epsilon=history[-1].epsilon if history else None,
            status=status,
        )


@dataclass(frozen=True)
class Holdings:
    """``holdings.json``: the records of each class at each client, for pictures of who holds what.

    A simulation knows them; a server of real clients does not, and has no such file. Nor has a
    private run: class counts are what it protects.
    """

    class_names: list[str]
    counts: list[list[int]]  # [clients][classes]
    test_records: int


@dataclass(frozen=True)
class Confusion:
    """``confusion.json``: the test records of each class that the model predicts as each class.

    It is of the round that was evaluated last. A private run has no such file.
    """

    round: int
    class_names: list[str]
    counts: list[list[int]]  # [true class][predicted class]
