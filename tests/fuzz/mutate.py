"""Changes to valid inputs, with knowledge of their structure and without."""

import json
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

_NUMBERS = (0, 1, -1, 2, 7, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**40)
_LARGE = (2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 10**400)
_TEXTS = (
    "",
    "x",
    "a.b",
    "../../etc",
    "/",
    "\x00",
    "\x1b[2J",
    "\u202e",
    "\ufffd",
    "\U0001f600",
    "NaN",
    "null",
    "-1",
    "1e999",
    "%s%n",
    "x" * 5000,
    "#",
)
_FLOATS = (0.5, -0.0, 1e-300, 1e300, -1e38, 3.5e38, float("nan"), float("inf"), -float("inf"))


def deep(levels: int) -> Any:
    """Lists in lists."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def strange(rng: Random) -> Any:
    """A JSON value that few readers expect."""
    choices: tuple[Callable[[], Any], ...] = (
        lambda: rng.choice(_NUMBERS),
        lambda: rng.choice(_LARGE),
        lambda: rng.choice(_TEXTS),
        lambda: rng.choice(_FLOATS),
        lambda: rng.choice((True, False, None)),
        lambda: [],
        lambda: {},
        lambda: deep(rng.choice((2, 30, 200))),
        lambda: [strange(rng) for _ in range(rng.randrange(4))],
        lambda: {rng.choice(_TEXTS): strange(rng) for _ in range(rng.randrange(4))},
    )
    return rng.choice(choices)()


def mutated_value(value: Any, rng: Random) -> Any:
    """The value with one part of it replaced, removed, added or repeated."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        kind = rng.random()
        if kind < 0.1:
            return {k: v for k, v in value.items() if k != key}
        if kind < 0.2:
            return {**value, rng.choice((*_TEXTS, *value)): strange(rng)}
        if kind < 0.25:
            return {(f"{k}?" if k == key else k): v for k, v in value.items()}
        return {**value, key: mutated_value(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        kind = rng.random()
        if kind < 0.15:
            return value[:place] + value[place + 1 :]
        if kind < 0.3:
            return [*value, *value[: place + 1]]
        return [*value[:place], mutated_value(value[place], rng), *value[place + 1 :]]
    if isinstance(value, int) and rng.random() < 0.5:
        return value + rng.choice((-1, 1, 2**31, -(2**31)))
    if isinstance(value, str) and value and rng.random() < 0.5:
        return mutated_text(value, rng)
    return strange(rng)


def mutated_text(text: str, rng: Random) -> str:
    """The text with a piece changed."""
    place = rng.randrange(len(text) + 1)
    kind = rng.randrange(4)
    if kind == 0:
        return text[:place] + rng.choice(_TEXTS) + text[place:]
    if kind == 1:
        return text[:place]
    if kind == 2:
        return text[:place] + text[place + rng.randrange(1, 9) :]
    return (
        text[:place]
        + chr(rng.choice((rng.randrange(32, 127), rng.randrange(0xD800))))
        + text[place + 1 :]
    )


def mutated_json(text: str, rng: Random) -> str:
    """JSON with a part changed: nearly always still JSON."""
    kind = rng.random()
    if kind < 0.05:
        return "[" * rng.choice((10, 2000, 100_000))
    if kind < 0.1:
        return text.replace("1", "9" * rng.choice((20, 400, 5000)), 1)
    if kind < 0.25:
        return mutated_text(text, rng)
    value = json.loads(text)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = mutated_value(value, rng)
    return json.dumps(value, ensure_ascii=rng.random() < 0.5)


def mutated_bytes(data: bytes, rng: Random, others: Sequence[bytes] = ()) -> bytes:
    """The bytes with a few changes that know nothing of their meaning."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        place = rng.randrange(len(changed) + 1)
        kind = rng.randrange(8)
        if kind == 0 and place < len(changed):
            changed[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[place : place + rng.randrange(1, 5)] = rng.randbytes(rng.randrange(1, 5))
        elif kind == 2:
            del changed[place:]
        elif kind == 3:
            del changed[place : place + rng.choice((1, 2, 8, 64))]
        elif kind == 4:
            piece = changed[place : place + rng.choice((1, 8, 64))]
            changed[place:place] = piece * rng.choice((1, 2, 16))
        elif kind == 5:
            number = rng.choice((*_NUMBERS, *_LARGE)) % 2**64
            form = rng.choice(("<B", "<H", "<I", "<Q", ">H", ">I", ">Q"))
            size = struct.calcsize(form)
            changed[place : place + size] = struct.pack(form, number % 256**size)
        elif kind == 6 and others:
            other = rng.choice(others)
            cut = rng.randrange(len(other) + 1)
            changed[place:] = other[cut:]
        else:
            changed[place:place] = rng.randbytes(rng.choice((1, 2, 7)))
    return bytes(changed)


def mutated_safetensors(data: bytes, rng: Random, others: Sequence[bytes] = ()) -> bytes:
    """A safetensors file: its layout, our header inside it, or its numbers changed."""
    kind = rng.random()
    if kind < 0.25:
        return mutated_bytes(data, rng, others)
    length = int.from_bytes(data[:8], "little")
    layout, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    if kind < 0.6:
        inner = layout.get("__metadata__", {})
        layout["__metadata__"] = {
            name: mutated_json(text, rng) if isinstance(text, str) else text
            for name, text in inner.items()
        }
    elif kind < 0.85:
        layout = mutated_value(layout, rng)
    else:
        body = mutated_bytes(body, rng) if rng.random() < 0.5 else floats_changed(body, rng)
    head = json.dumps(layout).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(head)) + head + body


def floats_changed(body: bytes, rng: Random) -> bytes:
    """Some numbers replaced by others, among them NaN and infinity."""
    changed = bytearray(body)
    for _ in range(rng.randrange(1, 4)):
        if len(changed) >= 4:
            place = 4 * rng.randrange(len(changed) // 4)
            changed[place : place + 4] = rng.choice(
                (b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\xff\xff\x7f\x7f", rng.randbytes(4))
            )
    return bytes(changed)
