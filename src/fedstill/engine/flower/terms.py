"""A node's own configuration: who it is, what it reads, what it allows, and its limits.

No message from the server changes any of it. The keys of ``--node-config``:

    partition-id = 2                 which client this is, counting from 0
    data = "/srv/records"            its own records; without it, its share of the experiment's data
    label-column, image-column       their names in the node's tables (default: the usual ones)
    split-column                     of the node's tables: only rows where it says train are used
    image-size = 28                  resize the node's images to this square
    data-dir = "/srv/datasets"       where the experiment's data are on this machine
    folder = "/var/lib/fedstill"     where the node keeps what must survive: its client's state
    device = "cuda"                  where it computes, if not where the experiment says
    epsilon = 3.0                    its own privacy budget, for all answers together
    delta = 1e-5                     of that budget
    classes = "declared"             with a budget: it may reveal which classes it holds
    allow = "package.module:Name"    code of its own that an experiment may name, comma-separated
    max-seconds, max-memory, max-threads, max-iterations, max-image-size, max-clients    limits
"""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fedstill.config import Experiment
from fedstill.config.nested import as_table
from fedstill.engine.flower.codes import Refusal
from fedstill.engine.flower.description import Description
from fedstill.privacy.settings import DELTA
from fedstill.types import AnyMethod

NodeConfig = Mapping[str, Any]
_TURNS = 100  # rounds times clients, in units of max-iterations


@dataclass(frozen=True, kw_only=True)
class NodeTerms:
    """The node's configuration, checked."""

    partition_id: int
    data: str | None = None
    label_column: str | None = None
    image_column: str | None = None
    split_column: str | None = None
    image_size: Annotated[int, Meta(ge=1)] | None = None
    data_dir: str | None = None
    folder: str | None = None
    device: str | None = None
    epsilon: Annotated[float, Meta(gt=0)] | None = None
    delta: Annotated[float, Meta(gt=0, lt=1)] = DELTA
    classes: Literal["all", "declared"] = "all"
    allow: str = ""
    max_seconds: Annotated[float, Meta(gt=0)] = 6 * 3600.0  # of one turn
    max_memory: Annotated[float, Meta(gt=0)] | None = None  # GiB; None: 80% of the machine's
    max_threads: Annotated[int, Meta(ge=1)] | None = None  # None: one per core
    max_iterations: Annotated[int, Meta(ge=1)] = 100_000  # any whole number among the settings
    max_image_size: Annotated[int, Meta(ge=1)] = 1024  # pixels per side
    max_clients: Annotated[int, Meta(ge=1)] = 1_000_000

    @classmethod
    def of(cls, config: NodeConfig) -> "NodeTerms":
        """The terms in a node's configuration; a misspelt key must not switch off a limit."""
        known = {field.name.replace("_", "-"): field.name for field in fields(cls)}
        for key in config:
            if key not in known and (near := difflib.get_close_matches(key, known, 1, 0.8)):
                raise Refusal("request", f"--node-config: no key '{key}'; did you mean {near[0]}?")
        if type(config.get("partition-id")) is not int:
            raise Refusal(
                "request", "the node's configuration has no partition-id: which client is it?"
            )
        table = {known[key]: value for key, value in config.items() if key in known}
        try:
            return msgspec.convert(table, cls)
        except msgspec.ValidationError as error:
            raise Refusal("request", f"--node-config: {error}".replace("_", "-")) from None

    @property
    def home(self) -> Path:
        """The folder of all that must survive."""
        flower = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
        return Path(self.folder).expanduser() if self.folder else flower / "fedstill"

    @property
    def memory(self) -> int:
        """The most bytes of memory for a turn."""
        if self.max_memory is not None:
            return int(self.max_memory * 2**30)
        return int(0.8 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))

    @property
    def threads(self) -> int:
        """The most threads."""
        return self.max_threads or os.cpu_count() or 1

    def check_code(self, config: Mapping[str, Any]) -> None:
        """Refuse code that this node did not allow, before anything is imported."""
        allowed = {name.strip() for name in self.allow.split(",")}
        for section, key in (
            ("method", "name"),
            ("start", "name"),
            ("model", "name"),
            ("model", "feature_map"),
        ):
            table = config.get(section)
            name = table.get(key) if isinstance(table, Mapping) else table
            if isinstance(name, str) and ":" in name and name not in allowed:
                raise Refusal(
                    "request",
                    f"{section}.{key} = '{name}': the server names code on this node; if it is "
                    f'meant to run here, allow it in the node\'s configuration: allow="{name}"',
                )

    def check_size(self, description: Description) -> None:
        """Refuse more clients or larger images than this node accepts."""
        if description.clients > self.max_clients:
            raise self._beyond("clients", description.clients, "max-clients", self.max_clients)
        if len(description.shape) == 3 and max(description.shape[1:]) > self.max_image_size:
            size = max(description.shape[1:])
            raise self._beyond("image size", size, "max-image-size", self.max_image_size)
        if not 0 <= self.partition_id < description.clients:
            raise Refusal(
                "request",
                f"partition-id = {self.partition_id}: the experiment has clients 0 to "
                f"{description.clients - 1}",
            )

    def check_work(self, method: AnyMethod, experiment: Experiment) -> None:
        """Refuse settings that would compute for too long; planning goes through all rounds."""
        threads, rounds = experiment.engine.threads, experiment.rounds
        if threads > self.threads:
            raise self._beyond("engine.threads", threads, "max-threads", self.threads)
        counts = {f"method.{name}": value for name, value in as_table(method).items()}
        counts |= {f"start.{name}": value for name, value in (experiment.start or {}).items()}
        for name, value in {**counts, "rounds": rounds}.items():
            if isinstance(value, int) and value > self.max_iterations:
                raise self._beyond(name, value, "max-iterations", self.max_iterations)
        turns, most = rounds * (experiment.clients or 1), _TURNS * self.max_iterations
        if turns > most:
            raise self._beyond("rounds x clients", turns, "max-iterations", most)

    @staticmethod
    def _beyond(name: str, value: int, limit: str, most: int) -> Refusal:
        return Refusal(
            "limit", f"{name} = {value}: this node's limit is {most}; {limit} in its configuration"
        )
