"""The ClientApp of a hostile node: ``attacks="1-nan,2-huge"`` in its configuration, by round.

It has a registered key and answers in the right format: only what it says is chosen to do harm. A
node without ``attacks`` is honest.
"""

import dataclasses
from collections.abc import Callable

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedstill.client import Answer
from fedstill.engine.flower.client_app import introduce
from fedstill.engine.flower.client_app import work as honest
from fedstill.engine.flower.records import read_answer, read_work, write_answer
from fedstill.wire import tree

app = ClientApp()
app.query()(introduce)

# Sets the window's title, clears the screen, and is far too long.
ESCAPES = "\x1b]0;done\x07\x1b[2J\x1b[1;31mall clients failed\x9b2J" + "x" * 10**6


@app.train()
def work(message: Message, context: Context) -> Message:
    task = read_work(message.content)
    attacks = str(context.node_config.get("attacks", ""))
    plan = dict(item.split("-") for item in attacks.split(",") if item)
    reply = honest(message, context)
    if str(task.round) not in plan:
        return reply
    answer = ATTACKS[plan[str(task.round)]](read_answer(reply.content, task.client))
    return Message(write_answer(answer), reply_to=message)


def _filled(value: float) -> Callable[[Answer], Answer]:
    def attack(answer: Answer) -> Answer:
        tensors, header = tree.unpack(answer.message)
        full = {name: torch.full_like(tensor, value) for name, tensor in tensors.items()}
        return dataclasses.replace(answer, message=tree.pack(full, header))

    return attack


def _many_records(answer: Answer) -> Answer:
    tensors, header = tree.unpack(answer.message)
    header["skeleton"]["records"] = 2**40
    return dataclasses.replace(answer, message=tree.pack(tensors, header))


ATTACKS: dict[str, Callable[[Answer], Answer]] = {
    "nan": _filled(float("nan")),
    "huge": _filled(3e38),  # finite, but no sum of it is
    "records": _many_records,  # to rule the average
    "spent": lambda answer: dataclasses.replace(answer, message=b"", error="x", spent=True),
    "escapes": lambda answer: dataclasses.replace(answer, message=b"", error=ESCAPES),
    "state": lambda answer: dataclasses.replace(answer, state=b"short"),
}
