"""What a run will cost, as far as it is known before it starts: ``forecast.json``."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Forecast:
    """Costs per round, of all sampled clients together, and memory. FedAvg is the yardstick.

    Messages are counted from what the method declares. Where that leaves their size open, the
    largest is meant (``at_most``); a codec with ``+zstd`` may make them smaller still.
    """

    clients: int  # sampled per round
    up_bytes: int
    down_bytes: int
    fedavg_up_bytes: int
    fedavg_down_bytes: int
    at_most: bool
    memory_bytes: int  # of all processes together, roughly
    warning: str | None = None
    seconds_per_round: float | None = None  # of the first round, once it is over
