"""A ServerApp that attacks its nodes: it asks what no node may answer, and keeps what they say.

What it asks is in ``out``.json, as written by the test; what came back goes to ``out``.replies.
"""

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid, ServerApp

from fedstill import wire
from fedstill.build import build
from fedstill.client import Work
from fedstill.config.nested import merged, read_toml
from fedstill.engine.flower.description import Description, describe
from fedstill.engine.flower.records import (
    read_answer,
    read_introduction,
    write_query,
    write_work,
)
from fedstill.types import ServerContext

TURNS_AT_ONCE = 4


def hostile_app(experiment: Path) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        out = Path(str(context.run_config["out"]))
        attacks = json.loads(out.with_suffix(".json").read_text())
        replies = _attack(grid, experiment, attacks)
        out.with_suffix(".replies").write_text(json.dumps(replies))

    return app


def _attack(grid: Grid, experiment: Path, attacks: Mapping[str, Any]) -> dict[str, Any]:
    built = build(read_toml(experiment)).planned()
    method, task = built.method, built.task
    context = ServerContext(task, 1, built.rng.at("server"))
    message = method.broadcast(context, method.init(context))
    down = wire.encode(message, method.download(task), built.experiment.wire.down)
    honest = describe(built)
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.2)
    (node,) = nodes
    replies: dict[str, Any] = {}
    for name, change in attacks.items():
        description = _changed(honest, change)
        work = write_work(Work(1, 0, down, None), description.text)
        replies[name] = _said(_exchange(grid, [Message(work, node, MessageType.TRAIN)])[0])
    query = write_query(dataclasses.replace(honest, clients=0).text)
    replies["query"] = _said(_exchange(grid, [Message(query, node, MessageType.QUERY)])[0])
    # Many turns at once, for a node whose budget allows two.
    works = [
        Message(write_work(Work(r, 0, down, None), honest.text), node, MessageType.TRAIN)
        for r in range(1, TURNS_AT_ONCE + 1)
    ]
    replies["at once"] = [_said(reply) for reply in _exchange(grid, works)]
    return replies


def _changed(honest: Description, change: Mapping[str, Any]) -> Description:
    config = merged(honest.config, change.get("config", {}))
    if change.get("drop"):
        config = {key: value for key, value in config.items() if key != change["drop"]}
    facts = {key: value for key, value in change.items() if key not in ("config", "drop")}
    return dataclasses.replace(honest, config=config, **facts)


def _exchange(grid: Grid, messages: list[Message]) -> list[Message]:
    numbers = list(grid.push_messages(messages))
    replies: list[Message] = []
    while len(replies) < len(messages):
        replies += list(grid.pull_messages(numbers))
        time.sleep(0.1)
    return replies


def _said(reply: Message) -> dict[str, Any]:
    """Everything that a reply holds, as text."""
    if reply.has_error():
        return {"flower": f"{reply.error.code} {reply.error.reason}"}
    if reply.metadata.message_type == MessageType.QUERY:
        introduction = read_introduction(reply.content)
        return {"client": introduction.client, "error": introduction.error}
    answer = read_answer(reply.content, 0)
    return {
        "error": answer.error,
        "traceback": answer.traceback,
        "spent": answer.spent,
        "bytes": len(answer.message),
        "raw": str(reply.content),
    }
