"""Tables in the Hugging Face layout: the rows of a split, from parquet files or the hub.

The image column is a struct {bytes, path} (or plain bytes), the label column holds class
numbers or words. Class names come from the ``huggingface`` entry of the schema's metadata.
Rows are counted from 0, as pandas and pyarrow do.
"""

import bisect
import copy
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstill.data.held_out import TRAIN
from fedstill.data.images import Encoded, ImageForm, decode_images
from fedstill.data.labels import check_class_names
from fedstill.data.limits import refuse_expanding
from fedstill.errors import UNREADABLE, FedstillError, RequestError

_BATCH = 512  # rows held in encoded form at a time
_LONGEST_NAME = 1000  # characters of a class or an owner: NumPy gives all the room of the longest


@dataclass(frozen=True)
class Table:
    """Rows of a split that lie in one place, read batch by batch."""

    place: str  # the file, for messages
    schema: pa.Schema
    rows: int
    batches: Callable[[str], Iterable[pa.Array]]  # the contents of one column, in order
    owner: str | None = None  # whose all its rows are, where each owner has a file


def parquet_table(path: Path) -> Table:
    """A parquet file, opened but not read."""
    try:
        file = pq.ParquetFile(path)
        schema, rows = file.schema_arrow, file.metadata.num_rows
    except Exception as error:  # damaged bytes make Arrow's parser raise nearly anything
        raise RequestError(f"{path}: not a readable parquet file ({_line(error)})") from error
    stored = path.stat().st_size

    def batches(column: str) -> Iterable[pa.Array]:
        held = seen = 0
        try:
            for batch in file.iter_batches(batch_size=_BATCH, columns=[column]):
                chunk = _without_dictionary(batch.column(0))
                held, seen = held + chunk.nbytes, seen + len(chunk)
                refuse_expanding(held, stored, f"{path}, column '{column}'")
                yield chunk
            if seen != rows:
                raise ValueError(f"{seen:,} rows in place of {rows:,}")
        except FedstillError:
            raise
        except Exception as error:
            raise RequestError(
                f"{path}: column '{column}' cannot be read ({_line(error)}); copy the file again"
            ) from error

    return Table(str(path), schema, rows, batches)


def _without_dictionary(chunk: pa.Array) -> pa.Array:
    return chunk.dictionary_decode() if pa.types.is_dictionary(chunk.type) else chunk


class Rows:
    """The tables (shards) of a split as one sequence of rows."""

    def __init__(self, tables: Sequence[Table], *, empty: bool = False) -> None:
        """``empty``: there may be no rows at all."""
        self.tables = [table for table in tables if table.rows or empty]
        if not self.tables:
            raise RequestError(f"{tables[0].place}: the file holds no records")
        self._ends = list(itertools.accumulate(table.rows for table in self.tables))
        self._chosen: NDArray[np.int64] | None = None
        self.count = self._ends[-1]

    def chosen(self, which: NDArray[np.bool_]) -> "Rows":
        """Only some of the rows, in the same order."""
        few = copy.copy(self)
        few._chosen = np.flatnonzero(which)
        few.count = len(few._chosen)
        return few

    def training(self, split: str) -> "Rows":
        """The rows in which the column ``split`` says train."""
        words = [str(value).lower() for value in self.values(split)]
        return self.chosen(np.array([word in TRAIN for word in words], dtype=np.bool_))

    @property
    def positions(self) -> Tensor:
        """Where these rows are among all rows of the tables."""
        chosen = np.arange(self.count) if self._chosen is None else self._chosen
        return torch.from_numpy(chosen)

    def where(self, row: int) -> str:
        """The file and the row in it, for messages."""
        row = row if self._chosen is None else int(self._chosen[row])
        shard = bisect.bisect_right(self._ends, row)
        table = self.tables[shard]
        return f"{table.place}, row {row - self._ends[shard] + table.rows} (counting from 0)"

    def find(self, wanted: str | None, usual: Sequence[str], setting: str) -> str:
        """The column to use; all tables must have it."""
        first = self.tables[0].schema.names
        name = wanted or next((n for n in usual if n in first), None)
        for table in self.tables:
            if name is None or name not in table.schema.names:
                sought = f"'{name}'" if name else " or ".join(f"'{n}'" for n in usual)
                raise RequestError(
                    f"{table.place}: no column {sought} (it has: "
                    f"{', '.join(table.schema.names)}); name the right one in {setting}"
                )
        return str(name)

    def column(self, name: str) -> pa.ChunkedArray:
        """A whole column without holes."""
        column = self.with_holes(name)
        if column.null_count:
            row = int(np.flatnonzero(pc.is_null(column).to_numpy())[0])
            raise RequestError(f"{self.where(row)}: column '{name}' is empty (null); fill it")
        return column

    def with_holes(self, name: str) -> pa.ChunkedArray:
        """A whole column. Whole numbers in one file and fractions in another are both numbers; a
        file without a single value has any type."""
        batches = (chunk for table in self.tables for chunk in table.batches(name))
        chunks = [_without_dictionary(chunk) for chunk in batches]
        kinds = {chunk.type for chunk in chunks if chunk.null_count < len(chunk)}
        if len(kinds) > 1 and all(map(is_number_type, kinds)):
            kinds = {pa.float64()}
        elif len(kinds) > 1 and all(is_number_type(k) or is_text_type(k) for k in kinds):
            kinds = {pa.string()}
        kind = kinds.pop() if len(kinds) == 1 else None
        try:
            if kind is not None:
                chunks = [_as(chunk, kind) for chunk in chunks]
            column = pa.chunked_array(chunks)
        except pa.ArrowException as error:
            raise RequestError(
                f"{self.tables[0].place}: column '{name}' has another type in another shard"
            ) from error
        return column if self._chosen is None else column.take(pa.array(self._chosen))

    @property
    def owners(self) -> NDArray[np.str_] | None:
        """Whose each row is, where each owner has a file of its own."""
        if self.tables[0].owner is None:
            return None
        names = np.array([table.owner for table in self.tables], dtype=np.str_)
        owners = np.repeat(names, [table.rows for table in self.tables])
        return owners if self._chosen is None else owners[self._chosen]

    def class_names(self, label: str) -> tuple[str, ...] | None:
        """Names of the classes from the schema's metadata, where they are given."""
        metadata = self.tables[0].schema.metadata or {}
        try:
            names: Any = json.loads(metadata[b"huggingface"])["info"]["features"][label]["names"]
        except (KeyError, TypeError, *UNREADABLE):
            return None
        if not isinstance(names, list):
            return None
        return check_class_names(
            [str(name) for name in names], f"{self.tables[0].place}, column '{label}'"
        )

    def names_or_numbers(
        self, column: str, role: str = "label"
    ) -> NDArray[np.int64] | NDArray[np.str_]:
        """A whole column of class or owner names or numbers; ``role`` says which, in messages."""
        values = self.column(column)
        if is_text(values):
            return self.as_texts(values, column)
        return self.as_integers(values, column, role)

    def as_integers(
        self, values: pa.ChunkedArray, column: str, role: str = "label"
    ) -> NDArray[np.int64]:
        """The values of a column that must hold whole numbers."""
        if pa.types.is_floating(values.type) and len(values):  # 1.0 where a program knows no 1
            whole = values.to_numpy()
            if np.all(np.abs(whole) < 2**53) and np.all(whole == np.round(whole)):
                return whole.astype(np.int64)  # type: ignore[no-any-return]
        if not (pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)):
            raise RequestError(
                f"{self.tables[0].place}: column '{column}' holds {values.type}, neither numbers "
                f"nor words; name another one in data.{role}_column"
            )
        return values.to_numpy().astype(np.int64)  # type: ignore[no-any-return]

    def as_texts(self, values: pa.ChunkedArray, column: str) -> NDArray[np.str_]:
        """The strings of a column of names."""
        try:
            texts = values.to_pylist()
        except UnicodeDecodeError as error:
            raise RequestError(
                f"{self.tables[0].place}: column '{column}' is not UTF-8 text"
            ) from error
        longest = max(range(len(texts)), key=lambda row: len(texts[row]))
        if len(texts[longest]) > _LONGEST_NAME:
            raise RequestError(
                f"{self.where(longest)}: column '{column}' holds a text of "
                f"{len(texts[longest]):,} characters, too long for a name"
            )
        return np.asarray(texts, dtype=np.str_)

    def images(self, column: str, form: ImageForm) -> Tensor:
        """All images decoded, in order."""
        out = form.empty(self.count)
        start = 0
        for table, encoded in self._chunks(column):
            room = out[start : start + len(encoded)]
            if len(room) < len(encoded):
                raise RequestError(f"{table.place}: it holds more rows than it says")

            def place(i: int, first: int = start) -> str:
                return self.where(first + i)

            decode_images(encoded, form, room, place)
            start += len(encoded)
        return torch.from_numpy(out)

    def encoded(self, column: str) -> Iterator[Encoded]:
        """All images as they are stored, in order."""
        for _, encoded in self._chunks(column):
            yield from encoded

    def _chunks(self, column: str) -> Iterator[tuple[Table, list[Encoded]]]:
        """The images of these rows, batch by batch, as they are stored."""
        wanted = None
        if self._chosen is not None:
            wanted = np.zeros(self._ends[-1], dtype=np.bool_)
            wanted[self._chosen] = True
        start = 0
        for table in self.tables:
            for chunk in table.batches(column):
                encoded = _encoded(chunk, column, table.place)
                if wanted is None:
                    yield table, encoded
                else:
                    keep = wanted[start : start + len(encoded)]
                    yield table, [e for e, k in zip(encoded, keep, strict=False) if k]
                start += len(chunk)

    def values(self, column: str) -> list[Any]:
        """A whole column as it is; None where it has holes or a text is not UTF-8."""
        chunks = (chunk for table in self.tables for chunk in table.batches(column))
        values = [value for chunk in chunks for value in _as_it_is(chunk)]
        return values if self._chosen is None else [values[row] for row in self._chosen]


def is_text(values: pa.ChunkedArray) -> bool:
    """Whether a column holds strings."""
    return is_text_type(values.type)


def is_text_type(kind: pa.DataType) -> bool:
    """Whether this is the type of strings."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_number_type(kind: pa.DataType) -> bool:
    """Whether this is a type of numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _as(chunk: pa.Array, kind: pa.DataType) -> pa.Array:
    """The chunk in the type of the whole column; one without a value is a hole throughout."""
    if chunk.type == kind:
        return chunk
    empty = chunk.null_count == len(chunk)
    return pa.nulls(len(chunk), kind) if empty else chunk.cast(kind)


def _as_it_is(chunk: pa.Array) -> list[Any]:
    try:
        return chunk.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        return [_decoded(value) for value in chunk.cast(pa.binary()).to_pylist()]


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _encoded(chunk: pa.Array, column: str, place: str) -> list[Encoded]:
    if is_text_type(chunk.type):
        folder = Path(place).parent
        return [None if path is None else folder / path for path in _as_it_is(chunk)]
    if pa.types.is_struct(chunk.type) and chunk.type.get_field_index("bytes") >= 0:
        chunk = pc.struct_field(chunk, "bytes")
    if not (pa.types.is_binary(chunk.type) or pa.types.is_large_binary(chunk.type)):
        raise RequestError(
            f"{place}: column '{column}' holds {chunk.type}, not encoded images; "
            "name another one in data.image_column"
        )
    return chunk.to_pylist()  # type: ignore[no-any-return]


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).split("\n")[0]
