"""What a node tells the server about a failure: one of these codes, and nothing else.

The words of an error may quote a path, a column or a record. They go to the node's log.
"""

from collections.abc import Mapping

from fedstill.errors import BudgetSpent, RequestError, WireError

# Code -> what the server prints. The first five depend on the request and on the node's own
# configuration alone; none of them depends on a record.
CODES: Mapping[str, str] = {
    "version": "it has another version of fedstill",
    "request": "its configuration does not allow what the experiment requests",
    "limit": "the turn would exceed a limit of its configuration, or did",
    "task": "it is bound to another task (shape, classes, scaling, columns)",
    "budget": "its privacy budget does not allow the turn",
    "message": "it cannot read the message",
    "state": "it does not have its client's state",
    "records": "its records cannot be opened, or do not fit the task",
    "failed": "its turn failed",
}
_SEE_LOG = "; the node's log has the details"


class Refusal(RequestError):
    """A request that this node does not fulfil: a code for the server, a text for the log."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def code_of(error: Exception) -> str:
    """The code of any error."""
    if isinstance(error, Refusal):
        return error.code
    if isinstance(error, BudgetSpent):
        return "budget"
    if isinstance(error, WireError):
        return "message"
    out_of_memory = isinstance(error, MemoryError) or is_out_of_memory(str(error))
    return "limit" if out_of_memory else "failed"


def is_out_of_memory(text: str) -> bool:
    """Whether an error says that memory ran out: Python's way, or that of PyTorch's allocator."""
    return "MemoryError" in text or "can't allocate memory" in text


def explained(error: str | None) -> str | None:
    """A code as the server prints it. Simulated nodes, on this machine, send words instead."""
    return f"{CODES[error]}{_SEE_LOG}" if error is not None and error in CODES else error
