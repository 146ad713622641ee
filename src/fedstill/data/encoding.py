"""Values of columns as features: numbers scaled, categories one by one, holes filled."""

import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstill.data.column import LIMIT, Column, width_of
from fedstill.data.csv_files import NUMBER
from fedstill.data.limits import refuse_without_room
from fedstill.data.rows import Rows, is_text, is_text_type
from fedstill.errors import RequestError, printable

_MOST_SHOWN = 20

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def plain(text: str) -> str:
    """4 and 4.0 are one category: which is written depends on the program."""
    return text[: text.index(".")] if re.fullmatch(r"[+-]?\d+\.0+", text) else text


def encode(rows: Rows, columns: Sequence[Column]) -> Tensor:
    """The records' features; a value that does not fit its column is refused."""
    features, bad = encode_leniently(rows, columns)
    for name, flags in bad.items():
        if flags.any():
            row = int(np.flatnonzero(flags)[0])
            value = shown(column_values(rows, name)[row])
            column = next(column for column in columns if column.name == name)
            remedy = f"add it to data.categories.{name}" if column.values else "fix it"
            what = "none of its categories" if column.values else "not a finite number"
            raise RequestError(f"{rows.where(row)}: '{name}' is {value}, {what}; {remedy}")
    return torch.from_numpy(features)


def encode_leniently(
    rows: Rows, columns: Sequence[Column]
) -> tuple[NDArray[np.float32], dict[str, Flags]]:
    """The features, and for each column which of its values do not fit it."""
    width = width_of(columns)
    refuse_without_room(
        4 * rows.count * width,
        f"{rows.count:,} records of {width:,} features",
        "name fewer columns",
    )
    out = np.zeros((rows.count, width), dtype=np.float32)
    bad: dict[str, Flags] = {}
    place = 0
    for column in columns:
        rows.find(column.name, (), "data.features")
        values = column_values(rows, column.name)
        part = out[:, place : place + column.width]
        bad[column.name] = (_encode_category if column.values else _encode_number)(
            values, column, part
        )
        place += column.width
    return out, bad


def column_values(rows: Rows, name: str) -> pa.ChunkedArray:
    """A whole column; what is not UTF-8 text in it is a text that fits nothing."""
    values = rows.with_holes(name)
    if not is_text(values):
        return values
    try:
        values.validate(full=True)
    except pa.ArrowException:
        texts = (
            bytes_.decode("utf-8", "replace") if bytes_ is not None else None
            for bytes_ in values.cast(pa.binary()).to_pylist()
        )
        values = pa.chunked_array([pa.array(list(texts), pa.string())])
    return values


def _encode_number(values: pa.ChunkedArray, column: Column, out: NDArray[np.float32]) -> Flags:
    raw, bad = numbers(values)
    holes = np.isnan(raw)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.where(holes, 0.0, (raw - column.centre) / column.half)
    if not column.undeclared and (outside := int((np.abs(scaled) > 1 + 1e-9).sum())):
        warnings.warn(
            f"column '{column.name}': values outside its declared range: {outside:,} (the range is "
            f"{column.low:g} to {column.high:g})",
            stacklevel=2,
        )
    # A range so wide that it overflows may come from a server: then the column says nothing.
    out[:, 0] = np.clip(np.nan_to_num(scaled), -LIMIT, LIMIT)
    if column.indicator:
        out[:, 1] = holes
    return bad


def _encode_category(values: pa.ChunkedArray, column: Column, out: NDArray[np.float32]) -> Flags:
    if not (is_text(values) or is_numeric(values.type)):
        return np.asarray(pc.is_valid(values).to_numpy())
    number = {value: i for i, value in enumerate(column.values)}
    distinct = pa.concat_arrays(values.chunks).dictionary_encode()
    words = [word(value) for value in distinct.dictionary.to_pylist()]
    of_word = np.array([number.get(word, -1) for word in words] + [-1])
    codes = distinct.indices.fill_null(len(words)).to_numpy()
    found = of_word[codes]
    rows = np.flatnonzero(found >= 0)
    out[rows, found[rows]] = 1.0
    unknown: Flags = (found < 0) & (codes < len(words))
    if column.undeclared and unknown.any():  # no client has such a record for training
        known = sorted({words[code] for code in codes[unknown]})[:_MOST_SHOWN]
        warnings.warn(
            f"column '{column.name}': values that do not occur in training count as missing: "
            f"{', '.join(known)[:200]}",
            stacklevel=2,
        )
        return np.zeros_like(unknown)
    return unknown


def word(value: Any) -> str:
    """A value as the name of a category."""
    return plain(str(value).lower() if isinstance(value, bool) else str(value))


def numbers(values: pa.ChunkedArray) -> tuple[Floats, Flags]:
    """A column as floats, NaN where it has holes, and which of its values are no numbers."""
    kind = values.type
    if is_text_type(kind):
        good = pc.match_substring_regex(values, NUMBER)
        text = pc.utf8_ltrim(pc.if_else(good, values, None), "+")
        bad = pc.fill_null(pc.invert(good), False).to_numpy()
        values = pc.cast(text, pa.float64())
    elif is_numeric(kind):
        bad = np.zeros(len(values), dtype=bool)
        values = pc.cast(values, pa.float64(), safe=False)
    else:  # in a file of a node: its columns are declared and cannot be chosen by their type
        bad = pc.is_valid(values).to_numpy()
        values = pa.chunked_array([pa.nulls(len(values), pa.float64())])
    raw = values.to_numpy().astype(np.float64)
    infinite = np.isinf(raw)
    return np.where(infinite, np.nan, raw), bad | infinite


def is_numeric(kind: pa.DataType) -> bool:
    """Whether values of this type are numbers, yes and no included."""
    simple = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return pa.types.is_null(kind) or any(is_kind(kind) for is_kind in simple)


def shown(value: Any) -> str:
    """A value in a message."""
    return repr(printable(str(value))[:60])
