"""Work and answers as Flower records: the bytes of ``engine/base.py``, as they are.

Flower sends every part of a record by a request of its own, and that costs almost a kilobyte each.
So a message goes into one ``ConfigRecord`` with the few words around it; only a large one goes into
an ``Array``, because arrays are sent in pieces of 5 MB and everything else in one.
"""

import zlib
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedstill.engine.base import Answer, Work, decode_answer, decode_work, encode
from fedstill.engine.flower.node import KEY_BYTES
from fedstill.errors import WireError

_WORDS, _BYTES, _BODY = "fedstill", "bytes", "body"
_STYPE = "fedstill.wire"
_LARGE = 4 * 2**20
_MOST_TEXT = 2**20  # letters of an experiment's description
_MOST_WORDS = 2000  # letters of an error: whatever a node sends, logs stay readable


@dataclass(frozen=True)
class Introduction:
    """What a node says about itself: which client it is, or why it cannot take part."""

    client: int
    error: str | None = None


def write_question(experiment: str) -> RecordDict:
    """Who are you, and do your data fit this experiment?"""
    return RecordDict({_WORDS: ConfigRecord({"experiment": _packed(experiment)})})


def write_introduction(introduction: Introduction) -> RecordDict:
    """The node's answer to that."""
    words = {"client": introduction.client, "error": introduction.error or ""}
    return RecordDict({_WORDS: ConfigRecord(words)})


def read_introduction(records: RecordDict) -> Introduction:
    """Who a node says it is; whatever it sent, nothing but a ``WireError`` comes of it."""
    words = _words(records)
    return Introduction(_number(words, "client"), _text(words, "error")[:_MOST_WORDS] or None)


def write_work(work: Work, experiment: str) -> RecordDict:
    """What one client is asked to do."""
    return _with_body({"experiment": _packed(experiment)}, encode(work))


def read_experiment(records: RecordDict) -> str:
    """The description that comes with every message down."""
    packed = _bytes(_words(records), "experiment")
    try:
        return zlib.decompressobj().decompress(packed, _MOST_TEXT).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise WireError("the description of the experiment cannot be read") from error


def read_work(records: RecordDict) -> Work:
    """The work in a message down."""
    return decode_work(_body(records))


def write_answer(answer: Answer) -> RecordDict:
    """What came of it."""
    return _with_body({}, encode(answer))


def read_answer(records: RecordDict, client: int) -> Answer:
    """The answer of this client. Records that are not as agreed are a refused answer."""
    try:
        answer = decode_answer(_body(records))
        if answer.client != client:
            raise WireError("it speaks for another client")
        if answer.state is not None and len(answer.state) != KEY_BYTES:  # it is checkpointed
            raise WireError(f"its state's key has {len(answer.state)} bytes, not {KEY_BYTES}")
    except WireError as error:
        return Answer(client, error=f"refused: {error}")
    return replace(
        answer,
        error=None if answer.error is None else answer.error[:_MOST_WORDS],
        traceback=None if answer.traceback is None else answer.traceback[: 10 * _MOST_WORDS],
        asked=True,
    )


def _packed(text: str) -> bytes:
    """It goes with every message down, and is half as long like this."""
    return zlib.compress(text.encode(), 9)


def _with_body(words: dict[str, Any], data: bytes) -> RecordDict:
    if len(data) <= _LARGE:
        return RecordDict({_WORDS: ConfigRecord({**words, _BODY: data})})
    array = Array(dtype="uint8", shape=(len(data),), stype=_STYPE, data=data)
    arrays = ArrayRecord(OrderedDict({_BODY: array}))
    return RecordDict({_WORDS: ConfigRecord(words), _BYTES: arrays})


def _body(records: RecordDict) -> bytes:
    words = _words(records)
    if _BODY in words:
        return _bytes(words, _BODY)
    record = records.get(_BYTES)
    array = record.get(_BODY) if isinstance(record, ArrayRecord) else None
    if not isinstance(array, Array) or array.stype != _STYPE:
        raise WireError("the records hold no message of ours")
    return bytes(array.data)


def _words(records: RecordDict) -> ConfigRecord:
    words = records.get(_WORDS)
    if not isinstance(words, ConfigRecord):
        raise WireError("the records are not ours")
    return words


def _number(words: ConfigRecord, key: str) -> int:
    value = words.get(key)
    if type(value) is not int:
        raise WireError(f"'{key}' is not a number")
    return value


def _text(words: ConfigRecord, key: str) -> str:
    value = words.get(key)
    if not isinstance(value, str):
        raise WireError(f"'{key}' is not text")
    return value


def _bytes(words: ConfigRecord, key: str) -> bytes:
    value = words.get(key)
    if not isinstance(value, bytes):
        raise WireError(f"'{key}' is not bytes")
    return value
