"""Work and answers as Flower records: the bytes of ``engine/base.py``, as they are.

Flower sends every part of a record in a separate request, which costs almost a kilobyte each. So a
message goes into one ``ConfigRecord`` together with its few other fields; only a large one goes
into an ``Array``, because arrays are sent in pieces of 5 MB and everything else in one.
"""

import zlib
from collections import OrderedDict
from dataclasses import replace
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedstill.engine.base import (
    Answer,
    Encoded,
    Work,
    decode_answer,
    decode_work,
    encode_answer,
    encode_work,
)
from fedstill.engine.flower.codes import explained
from fedstill.engine.flower.states import KEY_BYTES
from fedstill.engine.flower.turn import Introduction
from fedstill.errors import WireError

_FIELDS, _BYTES = "fedstill", "bytes"
_HEADER, _MESSAGE, _STATE = "header", "message", "state"
_STYPE = "fedstill.wire"
_LARGE = 4 * 2**20
_MOST_DESCRIPTION = 2**20  # characters of an experiment's description
_MOST_ERROR = 2000  # characters of an error: whatever a node sends, logs stay readable


def write_query(experiment: str) -> RecordDict:
    """A query: which client is this node, and do its data fit this experiment?"""
    return RecordDict({_FIELDS: ConfigRecord({"experiment": _packed(experiment)})})


def write_introduction(introduction: Introduction) -> RecordDict:
    """The node's answer to the query."""
    fields = {"client": introduction.client, "error": introduction.error or ""}
    return RecordDict({_FIELDS: ConfigRecord(fields)})


def read_introduction(records: RecordDict) -> Introduction:
    """Which client a node says it is; anything malformed is a ``WireError``."""
    fields = _fields(records)
    return Introduction(
        _number(fields, "client"), explained(_text(fields, "error")[:_MOST_ERROR] or None)
    )


def write_work(work: Work, experiment: str) -> RecordDict:
    """What one client is asked to do."""
    return _with_parts({"experiment": _packed(experiment)}, encode_work(work))


def read_experiment(records: RecordDict) -> str:
    """The description that comes with every message down."""
    packed = _bytes(_fields(records), "experiment")
    try:
        return zlib.decompressobj().decompress(packed, _MOST_DESCRIPTION).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise WireError("the description of the experiment cannot be read") from error


def read_work(records: RecordDict) -> Work:
    """The work in a message down."""
    return decode_work(_parts(records))


def write_answer(answer: Answer) -> RecordDict:
    """The client's answer."""
    return _with_parts({}, encode_answer(answer))


def read_answer(records: RecordDict, client: int) -> Answer:
    """The answer of this client. Malformed records give a refused answer."""
    try:
        answer = decode_answer(_parts(records))
        if answer.client != client:
            raise WireError("it answers for another client")
        if answer.state is not None and len(answer.state) != KEY_BYTES:  # it is checkpointed
            raise WireError(f"its state's key has {len(answer.state)} bytes, not {KEY_BYTES}")
    except WireError as error:
        return Answer(client, error=f"refused: {error}")
    return replace(
        answer,
        error=explained((answer.error or "")[:_MOST_ERROR] or None),
        traceback=(answer.traceback or "")[: 10 * _MOST_ERROR] or None,
        asked=True,
    )


def _packed(text: str) -> bytes:
    """Compressed to half its length, because it is part of every message down."""
    return zlib.compress(text.encode(), 9)


def _with_parts(fields: dict[str, Any], parts: Encoded) -> RecordDict:
    header, message, state = parts
    fields = {**fields, _HEADER: header, _STATE: state}
    if len(message) <= _LARGE:
        return RecordDict({_FIELDS: ConfigRecord({**fields, _MESSAGE: message})})
    array = Array(dtype="uint8", shape=(len(message),), stype=_STYPE, data=message)
    arrays = ArrayRecord(OrderedDict({_MESSAGE: array}))
    return RecordDict({_FIELDS: ConfigRecord(fields), _BYTES: arrays})


def _parts(records: RecordDict) -> Encoded:
    fields = _fields(records)
    return _bytes(fields, _HEADER), _message(records), _bytes(fields, _STATE)


def _message(records: RecordDict) -> bytes:
    fields = _fields(records)
    if _MESSAGE in fields:
        return _bytes(fields, _MESSAGE)
    record = records.get(_BYTES)
    array = record.get(_MESSAGE) if isinstance(record, ArrayRecord) else None
    if not isinstance(array, Array) or array.stype != _STYPE:
        raise WireError("the records hold no fedstill message")
    return bytes(array.data)


def _fields(records: RecordDict) -> ConfigRecord:
    fields = records.get(_FIELDS)
    if not isinstance(fields, ConfigRecord):
        raise WireError("the records are not fedstill's")
    return fields


def _number(fields: ConfigRecord, key: str) -> int:
    value = fields.get(key)
    if type(value) is not int:
        raise WireError(f"'{key}' is not a number")
    return value


def _text(fields: ConfigRecord, key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str):
        raise WireError(f"'{key}' is not text")
    return value


def _bytes(fields: ConfigRecord, key: str) -> bytes:
    value = fields.get(key)
    if not isinstance(value, bytes):
        raise WireError(f"'{key}' is not bytes")
    return value
