"""The server's turn: its next state, which is finite, or none.

One reply within its declaration can still make an average, or training on a set, overflow. Such a
reply is found by leaving it out, and does not enter the state.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedstill.errors import RunError
from fedstill.types import AnyMethod, Reply, ServerContext
from fedstill.wire import tree

# What a server may raise because of its numbers, or because too few replies are left.
_FAILURES = (ArithmeticError, ValueError, RunError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]

Replies = Sequence[Reply[Any]]


@dataclass(frozen=True)
class Turn:
    """The server's next state, and the replies that entered it."""

    state: Any
    replies: Replies


def take_turn(method: AnyMethod, context: ServerContext, state: Any, replies: Replies) -> Turn:
    """The next state from these replies, without those that would make it NaN or infinite.

    Some 2 n attempts for n replies, at most. A ``RunError`` if none gives a finite state.
    """
    attempts = _Attempts(method, context, state)
    turn, error = attempts.turn(replies), attempts.error
    if turn is None:
        # The largest numbers are the most likely cause: they are left out first.
        suspects = sorted(replies, key=lambda r: (-_largest(r.message), r.client))
        turn = attempts.without_one(replies, suspects) or attempts.one_more_at_a_time(suspects)
    if turn is not None:
        return turn
    if error is not None:  # with all replies: the others may only say that they are too few
        raise error
    raise RunError(
        f"round {context.round}: the server's state would not be finite, whichever client is left "
        "out: the training diverged, and the state of the round before is kept; start again with "
        "lower learning rates"
    )


class _Attempts:
    """The server's function on some of the replies, always from the same state and stream."""

    def __init__(self, method: AnyMethod, context: ServerContext, state: Any) -> None:
        self._method, self._context, self._state = method, context, state
        self.error: Exception | None = None  # of the last attempt

    def turn(self, replies: Replies) -> Turn | None:
        """The turn with these replies; ``None`` if its state is not finite."""
        self.error = None
        try:
            state = self._method.server(self._context, self._state, replies)
        except _FAILURES as error:
            self.error = error
            return None
        return Turn(state, replies) if tree.is_finite(state) else None

    def without_one(self, replies: Replies, suspects: Replies) -> Turn | None:
        """A single offender: the first suspect without which the state is finite."""
        for suspect in suspects if len(replies) > 1 else ():
            if turn := self.turn([reply for reply in replies if reply is not suspect]):
                return turn
        return None

    def one_more_at_a_time(self, suspects: Replies) -> Turn | None:
        """Several offenders: the least suspect replies, and each other one that does no harm."""
        kept: list[Reply[Any]] = []
        best: Turn | None = None
        for reply in reversed(suspects):
            trial = sorted([*kept, reply], key=lambda r: r.client)
            if len(trial) < self._method.replies_needed.number:
                kept = trial
            elif turn := self.turn(trial):
                kept, best = trial, turn
        return best


def _largest(message: Any) -> float:
    """The largest absolute value among a message's tensors and numbers; NaN is the worst."""
    tensors, skeleton = tree.flatten(message)
    values = [float(t.abs().max()) for t in tensors.values() if t.numel()]
    values += map(abs, tree.floats(skeleton))
    return math.inf if any(map(math.isnan, values)) else max(values, default=0.0)
