"""Rows of numbers and categories as records: float32 features [N, features].

What a column means is public: its range, its categories, whether values may be missing. Where that
is not declared, it is computed from the training records, which a private run refuses
(``privacy/guards.py``). A missing value is filled with a constant, never with a statistic.
"""

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from fedstill.data.rows import Rows, Table, is_text, is_text_type
from fedstill.errors import RequestError, did_you_mean, printable

_MOST_CATEGORIES = 100  # of a column whose categories are not declared
_MOST_FEATURES = 100_000
_MOST_SHOWN = 20

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Declared:
    """What the user says about the columns of features; ``None``: computed from the records."""

    features: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()  # left out, where the features are not named
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    categories: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    missing: tuple[str, ...] | None = None

    def names(self, rows: Rows, others: Sequence[str]) -> list[str]:
        """The columns that are features: those that are named, or all without another use."""
        held = rows.tables[0].schema.names
        place = rows.tables[0].place
        for key in ("features", "ignore", "ranges", "categories", "missing"):
            for name in getattr(self, key) or ():
                if name not in held:
                    raise RequestError(
                        f"data.{key}: no column '{name}' in {place}{did_you_mean(name, held)}"
                    )
                if name in others:
                    raise RequestError(f"data.{key}: column '{name}' is no feature; leave it out")
        names = list(dict.fromkeys(self.features or ()))
        if self.features is None:
            names = [n for n in held if n and n not in others and n not in self.ignore]
        if not names:
            raise RequestError(f"{place}: no column is left for the features")
        for name in names:
            rows.find(name, (), "data.features")
            for table in rows.tables:
                _refuse_kind(table, name)
        return names


def fit_columns(rows: Rows, names: Sequence[str], declared: Declared) -> tuple[Column, ...]:
    """What each of these columns becomes. ``rows`` are the training records alone."""
    columns = tuple(_column(rows, name, declared) for name in names)
    if (width := width_of(columns)) > _MOST_FEATURES:
        raise RequestError(
            f"{rows.tables[0].place}: {width:,} features, at most {_MOST_FEATURES:,}; name fewer "
            "columns in data.features"
        )
    return columns


def _column(rows: Rows, name: str, declared: Declared) -> Column:
    if name in declared.categories and name in declared.ranges:
        raise RequestError(f"data.ranges: column '{name}' is among data.categories; keep one")
    if name in declared.categories:
        return Column(name, values=_categories(name, declared.categories[name]))
    if name in declared.ranges:
        low, high = declared.ranges[name]
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise RequestError(
                f"data.ranges.{name} = [{low:g}, {high:g}]: the first must be less than the second"
            )
        return _with_indicator(rows, Column(name, low, high), declared)
    values = _values(rows, name)
    if _is_words(rows, name, values):
        return Column(name, values=_distinct(rows, name, values), undeclared="categories")
    known = _numbers(values)[0]
    known = known[np.isfinite(known)]
    mean, std = (float(known.mean()), float(known.std())) if len(known) else (0.0, 0.0)
    return _with_indicator(
        rows, Column(name, mean - std, mean + std, undeclared="ranges"), declared
    )


def _with_indicator(rows: Rows, column: Column, declared: Declared) -> Column:
    if declared.missing is not None:
        wanted, undeclared = column.name in declared.missing, column.undeclared
    else:
        wanted = bool(np.isnan(_numbers(_values(rows, column.name))[0]).any())
        undeclared = column.undeclared or ("missing" if wanted else "")
    return Column(column.name, column.low, column.high, (), wanted, undeclared)


def _categories(name: str, values: Sequence[Any]) -> tuple[str, ...]:
    texts = tuple(map(_word, values))
    if not texts or len(set(texts)) < len(texts):
        raise RequestError(f"data.categories.{name}: give each value once, and at least one")
    return texts


def _plain(text: str) -> str:
    """4 and 4.0 are one category: which is written depends on the program."""
    return text[: text.index(".")] if re.fullmatch(r"[+-]?\d+\.0+", text) else text


def _is_words(rows: Rows, name: str, values: pa.ChunkedArray) -> bool:
    """Whether a column holds words; one that holds numbers and a few words is refused."""
    if not is_text(values):
        return False
    bad = _numbers(values)[1]
    there = len(values) - values.null_count
    if there and not bad.any():  # the words are in other rows
        return False
    if bad.sum() * 10 < there:  # a misprint must not turn a measurement into categories
        row = int(np.flatnonzero(bad)[0])
        raise RequestError(
            f"{rows.where(row)}: '{name}' is {_shown(values[row])}, and most of its values are "
            f"numbers; fix it, or declare data.categories.{name}"
        )
    return True


def _refuse_kind(table: Table, name: str) -> None:
    """Refuse a column that holds neither words nor numbers."""
    kind = table.schema.field(name).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if _numeric(kind) or is_text_type(kind):
        return
    remedy = f"leave it out: --set 'data.ignore=[\"{name}\"]'"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_struct(kind):
        remedy = f"if it holds images, set data.image_column={name}, else {remedy}"
    raise RequestError(
        f"{table.place}: column '{name}' holds {str(kind)[:60]}, neither numbers nor words; "
        f"{remedy}"
    )


def _distinct(rows: Rows, name: str, values: pa.ChunkedArray) -> tuple[str, ...]:
    found = {_plain(text) for text in pc.unique(values).drop_null().to_pylist()}
    if len(found) > _MOST_CATEGORIES:
        raise RequestError(
            f"{rows.tables[0].place}: column '{name}' has {len(found):,} different words, more "
            f"than {_MOST_CATEGORIES}: leave it out (--set 'data.ignore=[\"{name}\"]'), or list "
            f"them in data.categories.{name}"
        )
    return tuple(sorted(found))


def encode(rows: Rows, columns: Sequence[Column]) -> Tensor:
    """The records' features; a value that does not fit its column is refused."""
    features, bad = encode_leniently(rows, columns)
    for name, flags in bad.items():
        if flags.any():
            row = int(np.flatnonzero(flags)[0])
            value = _shown(_values(rows, name)[row])
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
        values = _values(rows, column.name)
        part = out[:, place : place + column.width]
        bad[column.name] = (_encode_category if column.values else _encode_number)(
            values, column, part
        )
        place += column.width
    return out, bad


def _values(rows: Rows, name: str) -> pa.ChunkedArray:
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
    raw, bad = _numbers(values)
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
    if not (is_text(values) or _numeric(values.type)):
        return np.asarray(pc.is_valid(values).to_numpy())
    number = {value: i for i, value in enumerate(column.values)}
    distinct = pa.concat_arrays(values.chunks).dictionary_encode()
    words = [_word(value) for value in distinct.dictionary.to_pylist()]
    of_word = np.array([number.get(word, -1) for word in words] + [-1])
    codes = distinct.indices.fill_null(len(words)).to_numpy()
    found = of_word[codes]
    rows = np.flatnonzero(found >= 0)
    out[rows, found[rows]] = 1.0
    unknown: Flags = (found < 0) & (codes < len(words))
    if column.undeclared and unknown.any():  # no client has such a record for training
        shown = sorted({words[code] for code in codes[unknown]})[:_MOST_SHOWN]
        warnings.warn(
            f"column '{column.name}': values that do not occur in training count as missing: "
            f"{', '.join(shown)[:200]}",
            stacklevel=2,
        )
        return np.zeros_like(unknown)
    return unknown


def _word(value: Any) -> str:
    return _plain(str(value).lower() if isinstance(value, bool) else str(value))


def _numbers(values: pa.ChunkedArray) -> tuple[Floats, Flags]:
    """A column as floats, NaN where it has holes, and which of its values are no numbers."""
    kind = values.type
    if is_text_type(kind):
        good = pc.match_substring_regex(values, NUMBER)
        text = pc.utf8_ltrim(pc.if_else(good, values, None), "+")
        bad = pc.fill_null(pc.invert(good), False).to_numpy()
        values = pc.cast(text, pa.float64())
    elif _numeric(kind):
        bad = np.zeros(len(values), dtype=bool)
        values = pc.cast(values, pa.float64(), safe=False)
    else:  # in a file of a node: its columns are declared and cannot be chosen by their type
        bad = pc.is_valid(values).to_numpy()
        values = pa.chunked_array([pa.nulls(len(values), pa.float64())])
    raw = values.to_numpy().astype(np.float64)
    infinite = np.isinf(raw)
    return np.where(infinite, np.nan, raw), bad | infinite


def _numeric(kind: pa.DataType) -> bool:
    simple = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return pa.types.is_null(kind) or any(is_kind(kind) for is_kind in simple)


def _shown(value: Any) -> str:
    return repr(printable(str(value))[:60])
