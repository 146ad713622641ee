"""What is known about a run before it starts: its costs, and what the user should be told."""

from fedstill.forecast.costs import forecast
from fedstill.forecast.notes import notes, owners

__all__ = ["forecast", "notes", "owners"]
