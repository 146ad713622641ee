"""Conformance: what must hold for every method, built-in or user-supplied.

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
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from fedstill import wire
from fedstill.data import Split
from fedstill.engine.base import Answer, Progress, Work
from fedstill.engine.local import InProcess
from fedstill.federation import Federation
from fedstill.observe.observer import Observer
from fedstill.runs.folder import RunFolder
from fedstill.testing.hostile import HOSTILE, HostileClient, at_the_bounds, huge
from fedstill.testing.toys import (
    TOY_PRIVACY,
    Toy,
    bits,
    current_toy,
    toy_data,
    toy_experiment,
    toy_run,
)
from fedstill.types import AnyMethod, ClientContext, Params, Reply, ServerContext
from fedstill.wire import tree

_SOLVED = 0.01  # a loss; guessing among ten classes has 2.3
_ROUNDS = 3  # of the runs that are compared to the bit


class _Reversed(InProcess):
    """Clients run and answer in the opposite order."""

    def exchange(self, works: Sequence[Work], progress: Progress) -> Iterator[Answer]:
        return reversed(list(super().exchange(list(reversed(works)), progress)))


@dataclass(frozen=True)
class _Baseline:
    """An undisturbed run: the model after each round, and the server's state at the end."""

    params: tuple[bytes, ...]
    state: bytes


def _baseline(method: AnyMethod) -> _Baseline:
    """Computed once per method and toy problem, however many checks compare with it."""
    try:
        hash(method)
    except TypeError:  # a user's method with a list among its settings
        return _computed_baseline(method, current_toy())
    return _cached_baseline(method, current_toy())


def _computed_baseline(method: AnyMethod, toy: Callable[[], Toy]) -> _Baseline:
    with tempfile.TemporaryDirectory() as name:
        federation = _begun(method, Path(name) / "run")
        params: list[bytes] = []
        with InProcess(federation.built) as engine:
            while federation.round < _ROUNDS:
                federation.step(engine)
                params.append(bits(_params(federation)))
        return _Baseline(tuple(params), bits(federation.state))


_cached_baseline = lru_cache(maxsize=64)(_computed_baseline)


def _begun(method: AnyMethod, folder: Path, **options: Any) -> Federation:
    built = toy_experiment(method, rounds=_ROUNDS, **options).with_ledgers(folder / "ledger")
    federation = Federation(built, RunFolder(folder), Observer())
    federation.begin()
    return federation


def same_seed_same_bits(method: AnyMethod) -> None:
    """Two runs with one seed agree to the last bit; another seed gives something else."""
    first = _baseline(method)
    with tempfile.TemporaryDirectory() as name:
        torch.rand(7)  # global randomness must not matter
        again = toy_run(method, Path(name) / "again", rounds=_ROUNDS)
        assert bits(again.state) == first.state, "the same seed gave other bits"
        if method.deterministic:
            return
        other = _begun(method, Path(name) / "other", seed=1)
        with InProcess(other.built) as engine:
            other.step(engine)
        assert bits(_params(other)) != first.params[0], "the seed changes nothing"


def order_of_clients_is_irrelevant(method: AnyMethod) -> None:
    """The result does not depend on which client runs or answers first."""
    with tempfile.TemporaryDirectory() as name:
        backward = toy_run(method, Path(name) / "run", rounds=_ROUNDS, engine=_Reversed)
        same = bits(backward.state) == _baseline(method).state
        assert same, "the order of clients changed the bits"


def resumed_is_uninterrupted(method: AnyMethod) -> None:
    """A run that stops after a round and is resumed ends with the same bits."""
    with tempfile.TemporaryDirectory() as name:
        stopped = _begun(method, Path(name) / "run")
        with InProcess(stopped.built) as engine:
            stopped.step(engine)
        resumed = toy_run(method, Path(name) / "run", rounds=_ROUNDS)
        assert bits(resumed.state) == _baseline(method).state, "resuming changed the bits"


def messages_survive_the_wire(method: AnyMethod) -> None:
    """Every message is as declared, is decoded unchanged, and passes every codec."""
    for message, schema in _messages(method):
        data = wire.encode(message, schema)
        assert bits(wire.decode(data, schema)) == bits(message), "the wire changed the message"
        for codec in wire.CODECS:
            wire.decode(wire.encode(message, schema, codec), schema, codec)


def upload_is_as_declared(method: AnyMethod) -> None:
    """The bytes sent are those of the declared tensors, plus a small header."""
    for message, schema in _messages(method):
        size = len(wire.encode(message, schema))
        tensors, _ = tree.flatten(message)
        payload = sum(t.numel() * t.element_size() for t in tensors.values())
        exact = all(isinstance(d, int) for s in schema.tensors.values() for d in s.shape)
        assert payload <= schema.payload("float32"), "more than was declared"
        assert not exact or payload == schema.payload("float32"), "not what was declared"
        assert payload <= size <= schema.limit("float32")


def inputs_are_not_changed(method: AnyMethod) -> None:
    """States and messages are values: no function writes into what it was given."""
    built = toy_experiment(method)
    task, rng = built.task, built.rng
    server = ServerContext(task, 1, rng.at("server"))
    state = method.init(server)
    before = bits(state)
    down = method.broadcast(server, state)
    sent = bits(down)
    replies = []
    for client in range(built.partition.clients):
        context = ClientContext(
            task, 1, client, rng.at("client", client), data=built.client_records.of(client, task)
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


def loss_falls(method: AnyMethod) -> None:
    """A few rounds make the toy problem's loss smaller, unless the first one has solved it."""
    with tempfile.TemporaryDirectory() as name:
        history = toy_run(method, Path(name) / "run", rounds=6).history
        losses = [metrics.loss for metrics in history if metrics.loss is not None]
        assert min(losses[1:]) < losses[0] or losses[0] < _SOLVED, (
            f"the loss did not fall: {losses}"
        )


def uploads_are_bounded(method: AnyMethod) -> None:
    """Every floating-point number that a client sends has declared bounds, alone or in a norm."""
    schema = method.upload(toy_experiment(method).task)
    for name, spec in schema.tensors.items():
        field = name.partition(".")[0]
        limits = [spec.low, spec.high]
        if spec.dtype.is_floating_point and not all(map(math.isfinite, limits)):
            limit = schema.norms.get(name) or schema.norms.get(field)
            assert limit is not None, f"'{name}' has no finite range and no norm"
            assert math.isfinite(limit.most), f"the norm of '{name}' is not bounded"
    for name, (low, high, *_) in schema.numbers.items():
        assert math.isfinite(low), f"'{name}' has no lower bound"
        assert math.isfinite(high), f"'{name}' has no upper bound"


def hostile_messages_break_nothing(method: AnyMethod) -> None:
    """A client that sends the largest numbers it can, in every round, stops neither the run nor a
    resumed one; and no state is NaN or infinite."""
    if method.pooled:  # nothing is sent
        return
    for spoil in (huge, at_the_bounds):
        with tempfile.TemporaryDirectory() as name:
            federation = _begun(method, Path(name) / "run", quorum=0.5)
            with HostileClient(federation.built, spoil) as engine:
                while federation.round < _ROUNDS:
                    reason = federation.step(engine).failed.get(HOSTILE, "")
                    declared = spoil is at_the_bounds
                    assert not (declared and "declared" in reason), f"within bounds: {reason}"
                    assert tree.is_finite(federation.state), "the state is not finite"
            resumed = _begun(method, Path(name) / "run", quorum=0.5)
            assert resumed.round == _ROUNDS, "the run cannot be resumed"
            assert bits(resumed.state) == bits(federation.state)


CHECKS: dict[str, Callable[[AnyMethod], None]] = {
    check.__name__: check
    for check in (
        same_seed_same_bits,
        order_of_clients_is_irrelevant,
        resumed_is_uninterrupted,
        messages_survive_the_wire,
        upload_is_as_declared,
        inputs_are_not_changed,
        loss_falls,
        uploads_are_bounded,
        hostile_messages_break_nothing,
    )
}


def private_same_seed_same_bits(method: AnyMethod) -> None:
    """With noise from the seed, two private runs agree to the last bit, in whatever order."""
    with tempfile.TemporaryDirectory() as name:
        first = toy_run(method, Path(name) / "a", privacy=TOY_PRIVACY)
        again = toy_run(method, Path(name) / "b", privacy=TOY_PRIVACY, engine=_Reversed)
        assert bits(first.state) == bits(again.state), "the same seed gave other bits"


def private_noise_is_fresh(method: AnyMethod) -> None:
    """Otherwise the same seed gives another result each time: nobody can replay the noise."""
    unseeded = {**TOY_PRIVACY, "reproducible": False}
    with tempfile.TemporaryDirectory() as name:
        first = toy_run(method, Path(name) / "a", rounds=1, privacy=unseeded)
        again = toy_run(method, Path(name) / "b", rounds=1, privacy=unseeded)
        assert bits(_params(first)) != bits(_params(again)), "the noise came from the seed"


def private_accesses_are_as_declared(method: AnyMethod) -> None:
    """The records are accessed as often as the plan says, and the ledger has every access."""
    with tempfile.TemporaryDirectory() as name:
        ran = toy_run(method, Path(name) / "run", rounds=2, privacy=TOY_PRIVACY)
        plan, folder = ran.built.plan, ran.built.ledgers
        assert plan is not None
        assert folder is not None
        for client in range(ran.built.partition.clients):
            assert plan.ledger(folder, client).count == 2 * plan.accesses, "not as declared"
        assert ran.history[-1].epsilon == plan.spent(2 * plan.accesses)


def private_shapes_do_not_depend_on_the_data(method: AnyMethod) -> None:
    """What is sent has the same shapes whatever the records are, and however many."""
    data = toy_data()
    ones = Split(data.train.inputs[:40], torch.full_like(data.train.labels[:40], 1))
    other = dataclasses.replace(data, train=ones)
    shapes = []
    for records in (data, other):
        built = toy_experiment(method, privacy=TOY_PRIVACY, data=records)
        server = ServerContext(built.task, 1, built.rng.at("server"))
        down = method.broadcast(server, method.init(server))
        with tempfile.TemporaryDirectory() as name:
            runner = built.with_ledgers(Path(name) / "ledger").runner
            for client in range(built.partition.clients):
                up, _ = method.client(
                    runner.context(1, client), down, method.init_client(built.task)
                )
                tensors, skeleton = tree.flatten(up)
                counts = {k: v for k, v in skeleton.items() if isinstance(v, int)}
                shapes.append(({k: v.shape for k, v in tensors.items()}, counts))
    half = len(shapes) // 2
    assert shapes[:half] == shapes[half:], "the message's shape reveals something about the records"


# For methods with a private form, in addition to ``CHECKS``.
PRIVATE_CHECKS: dict[str, Callable[[AnyMethod], None]] = {
    check.__name__: check
    for check in (
        private_same_seed_same_bits,
        private_noise_is_fresh,
        private_accesses_are_as_declared,
        private_shapes_do_not_depend_on_the_data,
    )
}


def _params(federation: Federation) -> Params:
    params: Params = federation.built.method.params(federation.state)
    return params


def _messages(method: AnyMethod) -> Iterator[tuple[Any, wire.Schema[Any]]]:
    """A real message down and a real message up of every toy client."""
    built = toy_experiment(method)
    task = built.task
    server = ServerContext(task, 1, built.rng.at("server"))
    down = method.broadcast(server, method.init(server))
    yield down, method.download(task)
    for client in range(built.partition.clients):
        context = ClientContext(
            task,
            1,
            client,
            built.rng.at("client", client),
            data=built.client_records.of(client, task),
        )
        yield method.client(context, down, method.init_client(task))[0], method.upload(task)
