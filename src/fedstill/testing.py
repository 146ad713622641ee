"""Conformance: what must hold for every method, ours or yours.

    import pytest
    from fedstill.testing import CHECKS

    @pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
    def test_my_method_conforms(check):
        check(MyMethod(learning_rate=0.1))

Each check runs the method on a toy problem (three clients, a few dozen 8x8 digits, a small
network) and raises ``AssertionError`` where the method breaks a rule that the engines rely on.
``with on(toy_text): check(MyMethod())`` does so on a text with three speakers.
"""

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from fedstill import tree, wire
from fedstill.data import Split
from fedstill.engine.client import Answer, Work
from fedstill.engine.local import InProcess, Progress
from fedstill.federation import Federation
from fedstill.observe.observer import Observer
from fedstill.runs.folder import RunFolder
from fedstill.toys import (
    TOY_PRIVACY,
    as_vector,
    bits,
    on,
    toy_data,
    toy_digits,
    toy_run,
    toy_setup,
    toy_text,
    with_ledgers,
)
from fedstill.types import ClientContext, Params, Reply, ServerContext

__all__ = [
    "CHECKS",
    "PRIVATE_CHECKS",
    "TOY_PRIVACY",
    "as_vector",
    "bits",
    "on",
    "toy_data",
    "toy_digits",
    "toy_run",
    "toy_setup",
    "toy_text",
]


class _Reversed(InProcess):
    """Clients run and answer in the opposite order."""

    def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
        return reversed(list(super().exchange(list(reversed(works)), progress)))


def same_seed_same_bits(method: Any) -> None:
    """Two runs with one seed agree to the last bit; another seed gives something else."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = toy_run(method, folder / "a")
        torch.rand(7)  # global randomness must not matter
        again = toy_run(method, folder / "b")
        other = toy_run(method, folder / "c", seed=1)
        assert bits(first.state) == bits(again.state), "the same seed gave other bits"
        assert bits(_params(first)) != bits(_params(other)), "the seed changes nothing"


def order_of_clients_is_irrelevant(method: Any) -> None:
    """Whoever runs or answers first, the result is the same."""
    with tempfile.TemporaryDirectory() as name:
        forward = toy_run(method, Path(name) / "forward")
        backward = toy_run(method, Path(name) / "backward", engine=_Reversed)
        assert bits(forward.state) == bits(backward.state), "the order of clients changed the bits"


def resumed_is_uninterrupted(method: Any) -> None:
    """A run that stops after a round and goes on ends with the same bits."""
    with tempfile.TemporaryDirectory() as name:
        whole = toy_run(method, Path(name) / "whole", rounds=3)
        setup = with_ledgers(toy_setup(method, rounds=3), Path(name) / "parts")
        begun = Federation(setup, RunFolder(Path(name) / "parts"), Observer())
        begun.begin()
        with InProcess(setup) as engine:
            begun.step(engine)
        resumed = toy_run(method, Path(name) / "parts", rounds=3)
        assert bits(whole.state) == bits(resumed.state), "resuming changed the bits"


def messages_survive_the_wire(method: Any) -> None:
    """Every message is as declared, comes back from its bytes unchanged, in every codec alive."""
    for message, schema in _messages(method):
        data = wire.encode(message, schema)
        assert bits(wire.decode(data, schema)) == bits(message), "the wire changed the message"
        for codec in wire.CODECS:
            wire.decode(wire.encode(message, schema, codec), schema, codec)


def upload_is_as_declared(method: Any) -> None:
    """The bytes that travel are the tensors that were declared, plus a small header."""
    for message, schema in _messages(method):
        size = len(wire.encode(message, schema))
        tensors, _ = tree.flatten(message)
        payload = sum(t.numel() * t.element_size() for t in tensors.values())
        exact = all(isinstance(d, int) for s in schema.tensors.values() for d in s.shape)
        assert payload <= schema.payload("float32"), "more than was declared"
        assert not exact or payload == schema.payload("float32"), "not what was declared"
        assert payload <= size <= schema.limit("float32")


def inputs_are_not_changed(method: Any) -> None:
    """States and messages are values: no function writes into what it was given."""
    setup = toy_setup(method)
    task, rng = setup.task, setup.rng
    server = ServerContext(task, 1, rng.at("server"))
    state = method.init(server)
    before = bits(state)
    down = method.broadcast(server, state)
    sent = bits(down)
    replies = []
    for client in range(setup.partition.clients):
        context = ClientContext(
            task, 1, client, rng.at("client", client), data=setup.runner.records(client)
        )
        memory = method.init_client(task)
        remembered = bits(memory)
        up, _ = method.client(context, down, memory)
        assert bits(memory) == remembered, "client() wrote into its state"
        assert bits(down) == sent, "client() wrote into the message"
        replies.append(Reply(client, up))
    answers = [bits(reply.message) for reply in replies]
    method.server(server, state, replies)
    assert bits(state) == before, "server() wrote into its state"
    assert [bits(reply.message) for reply in replies] == answers, "server() wrote into the replies"


def loss_falls(method: Any) -> None:
    """A few rounds make the toy problem's loss smaller."""
    with tempfile.TemporaryDirectory() as name:
        history = toy_run(method, Path(name) / "run", rounds=6).history
        losses = [metrics.loss for metrics in history if metrics.loss is not None]
        assert min(losses[1:]) < losses[0], f"the loss did not fall: {losses}"


CHECKS: dict[str, Callable[[Any], None]] = {
    check.__name__: check
    for check in (
        same_seed_same_bits,
        order_of_clients_is_irrelevant,
        resumed_is_uninterrupted,
        messages_survive_the_wire,
        upload_is_as_declared,
        inputs_are_not_changed,
        loss_falls,
    )
}


def private_same_seed_same_bits(method: Any) -> None:
    """With noise from the seed, two private runs agree to the last bit, in whatever order."""
    with tempfile.TemporaryDirectory() as name:
        first = toy_run(method, Path(name) / "a", privacy=TOY_PRIVACY)
        again = toy_run(method, Path(name) / "b", privacy=TOY_PRIVACY, engine=_Reversed)
        assert bits(first.state) == bits(again.state), "the same seed gave other bits"


def private_noise_is_fresh(method: Any) -> None:
    """Without it, the same seed gives something else each time: nobody can replay the noise."""
    fresh = {**TOY_PRIVACY, "reproducible": False}
    with tempfile.TemporaryDirectory() as name:
        first = toy_run(method, Path(name) / "a", rounds=1, privacy=fresh)
        again = toy_run(method, Path(name) / "b", rounds=1, privacy=fresh)
        assert bits(_params(first)) != bits(_params(again)), "the noise came from the seed"


def private_accesses_are_as_declared(method: Any) -> None:
    """The door is opened as often as the plan says, and the ledger has every time."""
    with tempfile.TemporaryDirectory() as name:
        ran = toy_run(method, Path(name) / "run", rounds=2, privacy=TOY_PRIVACY)
        plan, folder = ran.setup.plan, ran.setup.ledgers
        assert plan is not None
        assert folder is not None
        for client in range(ran.setup.partition.clients):
            assert plan.ledger(folder, client).count == 2 * plan.accesses, "not as declared"
        assert ran.history[-1].epsilon == plan.spent(2 * plan.accesses)


def private_shapes_do_not_depend_on_the_data(method: Any) -> None:
    """What is sent has the same shapes whatever the records are, and however many."""
    data = toy_data()
    ones = Split(data.train.inputs[:40], torch.full_like(data.train.labels[:40], 1))
    other = dataclasses.replace(data, train=ones)
    shapes = []
    for records in (data, other):
        setup = toy_setup(method, privacy=TOY_PRIVACY, data=records)
        server = ServerContext(setup.task, 1, setup.rng.at("server"))
        down = method.broadcast(server, method.init(server))
        with tempfile.TemporaryDirectory() as name:
            runner = with_ledgers(setup, Path(name)).runner
            for client in range(setup.partition.clients):
                up, _ = method.client(
                    runner.context(1, client), down, method.init_client(setup.task)
                )
                tensors, skeleton = tree.flatten(up)
                counts = {k: v for k, v in skeleton.items() if isinstance(v, int)}
                shapes.append(({k: v.shape for k, v in tensors.items()}, counts))
    half = len(shapes) // 2
    assert shapes[:half] == shapes[half:], "the message's shape gives something about records away"


# For methods with a private form, beside ``CHECKS``.
PRIVATE_CHECKS: dict[str, Callable[[Any], None]] = {
    check.__name__: check
    for check in (
        private_same_seed_same_bits,
        private_noise_is_fresh,
        private_accesses_are_as_declared,
        private_shapes_do_not_depend_on_the_data,
    )
}


def _params(federation: Federation) -> Params:
    params: Params = federation.setup.method.params(federation.state)
    return params


def _messages(method: Any) -> Iterator[tuple[Any, wire.Schema[Any]]]:
    """A real message down and a real message up of every toy client."""
    setup = toy_setup(method)
    task = setup.task
    server = ServerContext(task, 1, setup.rng.at("server"))
    down = method.broadcast(server, method.init(server))
    yield down, method.download(task)
    for client in range(setup.partition.clients):
        context = ClientContext(
            task, 1, client, setup.rng.at("client", client), data=setup.runner.records(client)
        )
        yield method.client(context, down, method.init_client(task))[0], method.upload(task)
