"""What a node does with a message, within its limits, and what the server learns of a failure.

The server learns one of a few fixed codes (``codes.py``); the words are in the node's log. Only a
simulated node, on the server's own machine, sends the words.
"""

import dataclasses
import math
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from fedstill.client import Answer, Work
from fedstill.engine.flower.codes import CODES, code_of, is_out_of_memory
from fedstill.engine.flower.limits import limit_memory, within_seconds
from fedstill.engine.flower.node import SIMULATION, node_for
from fedstill.engine.flower.terms import NodeConfig, NodeTerms
from fedstill.errors import BudgetSpent, FedstillError

T = TypeVar("T")
_INTRODUCTION_SECONDS = 600.0  # to open the records, where there is no privacy
_NOBODY = -1  # the client of a message that cannot be read


@dataclass(frozen=True)
class Introduction:
    """What a node says about itself: which client it is, or why it cannot take part."""

    client: int
    error: str | None = None


def introduction(experiment: Callable[[], str], config: NodeConfig) -> Introduction:
    """Which client this node is in the experiment of this description, or why it is none."""

    def introduce() -> Introduction:
        node = node_for(experiment(), config)
        node.introduce()
        return Introduction(node.client)

    try:
        return _limited(config, introduce, _INTRODUCTION_SECONDS)
    except Exception as error:
        return Introduction(_NOBODY, _for_server(error))


def turn(work: Callable[[], Work], experiment: Callable[[], str], config: NodeConfig) -> Answer:
    """One client's turn. Both arguments read their part of the message."""
    client = _NOBODY

    def compute(asked: Work) -> Answer:
        node = node_for(experiment(), config)
        return node.answer(asked, lambda _step, _steps: None)

    try:
        asked = work()
        client = asked.client
        return _without_words(_limited(config, lambda: compute(asked)))
    except Exception as error:  # Flower would send its words to the server
        return Answer(client, error=_for_server(error), spent=isinstance(error, BudgetSpent))


def _limited(config: NodeConfig, compute: Callable[[], T], seconds: float = math.inf) -> T:
    """Within the node's limits; a simulated node has those of its machine."""
    if SIMULATION in os.environ:
        return compute()
    terms = NodeTerms.of(config)
    limit_memory(terms.memory)
    return within_seconds(min(seconds, terms.max_seconds), compute)


def _for_server(error: Exception) -> str:
    known = isinstance(error, FedstillError)
    if SIMULATION in os.environ:
        return str(error) if known else f"{type(error).__name__}: {error}"
    _log(str(error) if known else "".join(traceback.format_exception(error)))
    return code_of(error)


def _without_words(answer: Answer) -> Answer:
    """The answer with a code in place of words, which go to the log."""
    if answer.error is None or SIMULATION in os.environ or answer.error in CODES:
        return answer
    words = answer.traceback or answer.error
    _log(words)
    code = "limit" if is_out_of_memory(words) else "failed"
    code = "budget" if answer.spent else code
    return dataclasses.replace(answer, error=code, traceback=None)


def _log(text: str) -> None:
    print(f"fedstill: {text}", file=sys.stderr, flush=True)
