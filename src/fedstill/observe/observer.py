"""What a run reports while it runs. The default observer does nothing."""

from pathlib import Path

from fedstill.runs.forecast import Forecast
from fedstill.runs.metrics import RoundMetrics, Summary


class Observer:
    """Override what you care about. Calls come in the order of this class."""

    def started(self, folder: Path, summary: Summary, rounds: int, done: int) -> None:
        """The run begins, or is resumed after ``done`` rounds."""

    def forecast(self, forecast: Forecast) -> None:
        """What a round will cost, as far as it is known before the first one."""

    def note(self, text: str) -> None:
        """Something the user should know, once."""

    def round_started(self, round: int, clients: list[int]) -> None:
        """These clients were sampled."""

    def client_progress(self, client: int, step: int, steps: int) -> None:
        """A client is this far. May come from another thread."""

    def client_done(self, client: int, error: str | None) -> None:
        """A client answered, or failed for this reason."""

    def server_progress(self, step: int, steps: int) -> None:
        """The server is this far."""

    def round_done(self, metrics: RoundMetrics) -> None:
        """The round is over and recorded."""

    def finished(self, folder: Path, summary: Summary) -> None:
        """The run has ended; ``summary.status`` says how."""

    def stop(self) -> None:
        """No more calls will come, however the run ended: release the terminal."""
