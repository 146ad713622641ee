"""A ClientApp with faults from its node's configuration: ``faults="1-nan,2-hang"`` by round.

The honest answer is computed first and then altered after the wire's checks, as an attacker would
do it.
"""

import dataclasses
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedstill.client import Answer, ClientRunner
from fedstill.engine.flower.client_app import introduce
from fedstill.engine.flower.client_app import work as honest
from fedstill.engine.flower.records import read_answer, read_work, write_answer
from fedstill.types import Params
from fedstill.wire import tree
from tests.waiting import wait_until

app = ClientApp()
app.query()(introduce)

IMAGES, LABELS = "synthetic.images", "synthetic.labels"


@app.train()
def work(message: Message, context: Context) -> Message:
    task = read_work(message.content)
    faults = str(context.node_config.get("faults", ""))
    plan = dict(item.split("-") for item in faults.split(",") if item)
    fault = plan.get(str(task.round))
    mark = Path(str(context.node_config["folder"])) / f"{task.round}-{fault}"
    if fault is not None:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    if fault == "raise":
        setattr(ClientRunner, "context", _raise)  # noqa: B010
    if fault == "hang":
        time.sleep(3600)
    if fault == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hold":
        wait_until(mark.with_suffix(".go").exists, "the test's release")
    if fault is not None and fault.startswith("work"):
        time.sleep(float(fault.removeprefix("work")))
    reply = honest(message, context)
    if fault not in SPOILT and fault not in ("garbage", "huge"):
        return reply
    answer = read_answer(reply.content, task.client)
    spoilt = _spoil(answer, fault, int(context.node_config.get("huge", 8)))
    return Message(write_answer(spoilt), reply_to=message)


def _raise(*_: object) -> None:
    raise ValueError("a record of patient 4711")


def _nan(tensors: Params) -> None:
    tensors[IMAGES][0] = torch.nan


def _shapes(tensors: Params) -> None:
    tensors[IMAGES] = tensors[IMAGES][..., :-1].contiguous()


def _many(tensors: Params) -> None:
    for name in (IMAGES, LABELS):  # one more than is declared: its size alone does not show it
        tensors[name] = torch.cat([tensors[name], tensors[name][:1]])


def _label(tensors: Params) -> None:
    tensors[LABELS][0] = 99


SPOILT: dict[str | None, Callable[[Params], None]] = {
    "nan": _nan,
    "shapes": _shapes,
    "many": _many,
    "label": _label,
}


def _spoil(answer: Answer, fault: str | None, megabytes: int) -> Answer:
    if fault == "garbage":
        return dataclasses.replace(answer, message=bytes(range(256)) * 40)
    if fault == "huge":
        return dataclasses.replace(answer, message=os.urandom(2**20) * megabytes)
    tensors, header = tree.unpack(answer.message)
    SPOILT[fault](tensors)
    return dataclasses.replace(answer, message=tree.pack(tensors, header))
