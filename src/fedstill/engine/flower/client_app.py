"""The ClientApp: one for every method. A message brings the work, the node has the data."""

from functools import partial

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedstill.engine.flower.records import (
    read_experiment,
    read_work,
    write_answer,
    write_introduction,
)
from fedstill.engine.flower.turn import introduction, turn

app = ClientApp()


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Which client this node is, or why it cannot take part."""
    said = introduction(partial(read_experiment, message.content), context.node_config)
    return Message(write_introduction(said), reply_to=message)


@app.train()
def work(message: Message, context: Context) -> Message:
    """One client's turn."""
    answer = turn(
        partial(read_work, message.content),
        partial(read_experiment, message.content),
        context.node_config,
    )
    return Message(write_answer(answer), reply_to=message)
