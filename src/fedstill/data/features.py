"""Which columns of a table are features, and what each of them becomes.

What a column means is public: its range, its categories, whether values may be missing. Where that
is not declared, it is computed from the training records, which a private run refuses
(``privacy/guards.py``). A missing value is filled with a constant, never with a statistic.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedstill.data.column import Column, width_of
from fedstill.data.encoding import column_values, is_numeric, numbers, plain, shown, word
from fedstill.data.held_out import says_split
from fedstill.data.rows import Rows, Table, is_text, is_text_type
from fedstill.errors import RequestError, did_you_mean

_MOST_CATEGORIES = 100  # of a column whose categories are not declared
_MOST_FEATURES = 100_000


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
    values = column_values(rows, name)
    if _is_words(rows, name, values):
        return Column(name, values=_distinct(rows, name, values), undeclared="categories")
    known = numbers(values)[0]
    known = known[np.isfinite(known)]
    mean, std = (float(known.mean()), float(known.std())) if len(known) else (0.0, 0.0)
    return _with_indicator(
        rows, Column(name, mean - std, mean + std, undeclared="ranges"), declared
    )


def _with_indicator(rows: Rows, column: Column, declared: Declared) -> Column:
    if declared.missing is not None:
        wanted, undeclared = column.name in declared.missing, column.undeclared
    else:
        wanted = bool(np.isnan(numbers(column_values(rows, column.name))[0]).any())
        undeclared = column.undeclared or ("missing" if wanted else "")
    return Column(column.name, column.low, column.high, (), wanted, undeclared)


def _categories(name: str, values: Sequence[Any]) -> tuple[str, ...]:
    texts = tuple(map(word, values))
    if not texts or len(set(texts)) < len(texts):
        raise RequestError(f"data.categories.{name}: give each value once, and at least one")
    return texts


def _is_words(rows: Rows, name: str, values: pa.ChunkedArray) -> bool:
    """Whether a column holds words; one that holds numbers and a few words is refused."""
    if not is_text(values):
        return False
    bad = numbers(values)[1]
    there = len(values) - values.null_count
    if there and not bad.any():  # the words are in other rows
        return False
    if bad.sum() * 10 < there:  # a misprint must not turn a measurement into categories
        row = int(np.flatnonzero(bad)[0])
        raise RequestError(
            f"{rows.where(row)}: '{name}' is {shown(values[row])}, and most of its values are "
            f"numbers; fix it, or declare data.categories.{name}"
        )
    return True


def _refuse_kind(table: Table, name: str) -> None:
    """Refuse a column that holds neither words nor numbers."""
    kind = table.schema.field(name).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if is_numeric(kind) or is_text_type(kind):
        return
    remedy = f"leave it out: --set 'data.ignore=[\"{name}\"]'"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_struct(kind):
        remedy = f"if it holds images, set data.image_column={name}, else {remedy}"
    raise RequestError(
        f"{table.place}: column '{name}' holds {str(kind)[:60]}, neither numbers nor words; "
        f"{remedy}"
    )


def _distinct(rows: Rows, name: str, values: pa.ChunkedArray) -> tuple[str, ...]:
    found = {plain(text) for text in pc.unique(values).drop_null().to_pylist()}
    if says_split(found):
        raise RequestError(
            f"{rows.tables[0].place}: column '{name}' says which records are for the test; set "
            f"data.split_column={name}, or leave it out: --set 'data.ignore=[\"{name}\"]'"
        )
    if len(found) > _MOST_CATEGORIES:
        raise RequestError(
            f"{rows.tables[0].place}: column '{name}' has {len(found):,} different words, more "
            f"than {_MOST_CATEGORIES}: leave it out (--set 'data.ignore=[\"{name}\"]'), or list "
            f"them in data.categories.{name}"
        )
    return tuple(sorted(found))
