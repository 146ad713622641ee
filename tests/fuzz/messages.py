"""What travels: messages of all methods in all codecs, states, work, frames, descriptions."""

import io
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import zstandard

from fedstill import wire
from fedstill.config.registry import build_method
from fedstill.engine.base import (
    Answer,
    Work,
    decode_answer,
    decode_work,
    encode_answer,
    encode_work,
)
from fedstill.engine.flower.description import Description, describe, read_description
from fedstill.engine.processes import read_frame, write_frame
from fedstill.methods import METHODS
from fedstill.models import ConvNet
from fedstill.testing.toys import toy_data, toy_experiment
from fedstill.types import ClientContext, Reply, ServerContext
from fedstill.wire import Schema, tree
from tests.fuzz.mutate import mutated_bytes, mutated_json, mutated_safetensors
from tests.fuzz.target import Check, Make, Target
from tests.methods.small import SMALL

# One of each kind of message and state.
_METHODS = (
    "fedavg",
    "scaffold",
    "fednova",
    "feddm",
    "feddualmatch",
    "distdd",
    "fedsynth",
    "random-mask",
    "fedgloss",
    "psg",
    "dynafed",
    "local-gm",
    "real",
    "sketch",
)


@cache
def exchanged() -> tuple[list[tuple[Any, Schema[Any]]], list[Any]]:
    """Real messages with their declarations, and real states, of a round of every method."""
    messages: list[tuple[Any, Schema[Any]]] = []
    states: list[Any] = []
    data = toy_data()
    small = ConvNet(data.shape, data.classes, width=2, depth=1)
    for name in _METHODS:
        assert name in METHODS
        method = build_method({"name": name, **SMALL.get(name, {})})
        built = toy_experiment(method, model=small)
        task = built.task
        server = ServerContext(task, 1, built.rng.at("server"))
        state = method.init(server)
        down = method.broadcast(server, state)
        messages.append((down, method.download(task)))
        replies = []
        for client in range(built.partition.clients):
            records = built.client_records.of(client, task)
            context = ClientContext(task, 1, client, built.rng.at("client", client), data=records)
            up, after = method.client(context, down, method.init_client(task))
            replies.append(Reply(client, up))
            states += [] if after is None else [after]
            messages.append((up, method.upload(task)))
        states += [state, method.server(server, state, replies)]
    return messages, states


def mutated_frame(data: bytes, rng: Random, others: Sequence[bytes]) -> bytes:
    """A compact message with a changed header that can still be read, or changed anywhere."""
    end = 3 + int.from_bytes(data[1:3], "little")
    if rng.random() < 0.5:
        return data[:end] + mutated_bytes(data[end:], rng, others)
    if rng.random() < 0.2:
        return mutated_bytes(data, rng, others)
    text = json.dumps(msgspec.msgpack.decode(data[3:end]))
    try:
        header = msgspec.msgpack.encode(json.loads(mutated_json(text, rng)))
    except (ValueError, OverflowError, RecursionError, UnicodeError):
        header = mutated_bytes(data[3:end], rng)
    return data[:1] + (len(header) & 0xFFFF).to_bytes(2, "little") + header + data[end:]


def wire_messages(_: Path) -> tuple[Make, Check]:
    """Decoded: as declared, and it can be sent on."""
    codecs = sorted(wire.CODECS)
    plain = [(wire.encode(m, s, c), s, c) for m, s in exchanged()[0] for c in codecs]
    datas = [data for data, _, _ in plain]

    def make(rng: Random) -> tuple[bytes, int, str]:
        place = rng.randrange(len(plain))
        data, _, codec = plain[place]
        if codec.startswith("bits"):
            return mutated_frame(data, rng, [rng.choice(datas)]), place, codec
        packed = codec.endswith("zstd")
        if packed and rng.random() < 0.7:  # what is inside is changed, and packed again
            inner = zstandard.ZstdDecompressor().decompress(data)
            inner = mutated_safetensors(inner, rng)
            return zstandard.ZstdCompressor(level=1).compress(inner), place, codec
        if packed:
            return mutated_bytes(data, rng, [rng.choice(datas)]), place, codec
        codec = rng.choice(codecs) if rng.random() < 0.05 else codec
        return mutated_safetensors(data, rng, [rng.choice(datas)]), place, codec

    def check(case: tuple[bytes, int, str]) -> None:
        data, place, codec = case
        schema = plain[place][1]
        message = wire.decode(data, schema, codec)
        schema.check(message)
        again = wire.decode(wire.encode(message, schema), schema)
        assert tree.dump(again) == tree.dump(message), "the wire changed the message"

    return make, check


def states(_: Path) -> tuple[Make, Check]:
    """Loaded: of the type that was asked for, and stored again."""
    found = [(tree.dump(state), type(state)) for state in exchanged()[1]]
    datas = [data for data, _ in found]

    def make(rng: Random) -> tuple[bytes, int]:
        place = rng.randrange(len(found))
        return mutated_safetensors(found[place][0], rng, [rng.choice(datas)]), place

    def check(case: tuple[bytes, int]) -> None:
        data, place = case
        kind = found[place][1]
        state = tree.load(data, kind)
        assert isinstance(state, kind)
        assert tree.dump(tree.load(tree.dump(state), kind)) == tree.dump(state)

    return make, check


def work_and_answers(_: Path) -> tuple[Make, Check]:
    """The three byte strings of a client's work and of its answer."""
    work = encode_work(Work(3, 2, b"message", b"state"))
    answer = encode_answer(Answer(2, b"message", None, "it failed", "Traceback", True, False))

    def make(rng: Random) -> tuple[bool, list[bytes]]:
        is_work = rng.random() < 0.5
        parts = list(work if is_work else answer)
        if rng.random() < 0.9:
            parts[0] = mutated_json(parts[0].decode(), rng).encode("utf-8", "replace")
        else:
            parts[0] = mutated_bytes(parts[0], rng)
        if rng.random() < 0.1:
            parts = parts[: rng.randrange(4)] + [b""] * rng.randrange(3)
        return is_work, parts

    def check(case: tuple[bool, list[bytes]]) -> None:
        is_work, parts = case
        if is_work:
            assert decode_work(encode_work(decode_work(parts))) == decode_work(parts)
        else:
            assert decode_answer(encode_answer(decode_answer(parts))) == decode_answer(parts)

    return make, check


def frames(_folder: Path) -> tuple[Make, Check]:
    """What a worker process reads from its parent."""
    stream = io.BytesIO()
    write_frame(stream, {"task": "work", "path": ["a", "b"]}, [b"one", b"", b"three" * 20])
    whole = stream.getvalue()
    line, _, body = whole.partition(b"\n")

    def make(rng: Random) -> bytes:
        if rng.random() < 0.3:
            return mutated_bytes(whole, rng)
        head = mutated_json(line.decode(), rng).encode("utf-8", "replace")
        return head + b"\n" + body

    def check(case: bytes) -> None:
        try:
            header, parts = read_frame(io.BytesIO(case))
        except EOFError:  # the other side is gone: the engine says so
            return
        assert isinstance(header, dict)
        assert sum(map(len, parts)) <= len(case)

    return make, check


def descriptions(_: Path) -> tuple[Make, Check]:
    """What a node is told about the experiment."""
    built = toy_experiment(build_method({"name": "fedavg"}))
    text = describe(built).text

    def make(rng: Random) -> str:
        return mutated_json(text, rng)

    def check(case: str) -> None:
        found = read_description(case)
        assert isinstance(found, Description)
        assert msgspec.json.decode(found.text, type=Description) == found
        json.dumps(found.config)

    return make, check


TARGETS = (
    Target("wire", 0.30, wire_messages),
    Target("states", 0.12, states),
    Target("answers", 0.08, work_and_answers),
    Target("frames", 0.06, frames),
    Target("descriptions", 0.07, descriptions),
)
