"""The ClientApp: one for every method. A message brings the work, the node has the data."""

import dataclasses
import os
import sys
import traceback

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedstill.engine.base import Answer
from fedstill.engine.flower.node import SIMULATION, node_for
from fedstill.engine.flower.records import (
    Introduction,
    read_experiment,
    read_work,
    write_answer,
    write_introduction,
)
from fedstill.errors import FedstillError

app = ClientApp()


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Which client this node is, or why it cannot take part."""
    try:
        node = node_for(read_experiment(message.content), context.node_config)
        introduction = Introduction(node.client)
    except FedstillError as error:
        introduction = Introduction(-1, str(error))
    return Message(write_introduction(introduction), reply_to=message)


@app.train()
def work(message: Message, context: Context) -> Message:
    """One client's turn."""
    task = read_work(message.content)
    try:
        node = node_for(read_experiment(message.content), context.node_config)
        answer = node.answer(task, lambda _step, _steps: None)
    except FedstillError as error:
        answer = Answer(task.client, error=str(error))
    except Exception as error:  # Flower would send its message to the server
        reason = f"{type(error).__name__}: {error}"
        answer = Answer(task.client, error=reason, traceback=traceback.format_exc())
    return Message(write_answer(_without_details(answer)), reply_to=message)


def _without_details(answer: Answer) -> Answer:
    """The text of an unexpected error may hold records: a real node writes it to its log only."""
    if answer.traceback is None or SIMULATION in os.environ:
        return answer
    print(answer.traceback, file=sys.stderr)
    kind = (answer.error or "").partition(":")[0]
    return dataclasses.replace(
        answer, error=f"{kind} on the node (its log has the traceback)", traceback=None
    )
