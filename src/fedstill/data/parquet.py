"""Columns of images and labels in the Hugging Face layout, from parquet files or the hub.

The image column is a struct {bytes, path} (or plain bytes), the label column holds class
numbers or words. Class names come from the ``huggingface`` entry of the schema's metadata.
Rows are counted from 0, as pandas and pyarrow do.
"""

import bisect
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

from fedstill.data.decoded import Decoded
from fedstill.data.images import Encoded, ImageForm, decode_images
from fedstill.data.labels import (
    check_labels,
    match_names,
    number_classes,
    number_groups,
    number_more_groups,
)
from fedstill.data.natural import hold_out
from fedstill.data.text import (
    NEXT_COLUMN,
    TEXT_COLUMNS,
    Texts,
    column_values,
    join_posts,
    join_windows,
)
from fedstill.errors import RequestError
from fedstill.records import Split

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "fine_label", "character")
_BATCH = 2048  # rows held in encoded form at a time


@dataclass(frozen=True)
class Columns:
    """Names of the columns that matter; ``None`` means: look for the usual names.

    ``owners`` are the usual names of the client column. Without any, and without ``client``,
    records have no owners.
    """

    image: str | None = None
    label: str | None = None
    client: str | None = None
    text: str | None = None
    owners: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """Rows of a split that lie in one place, read batch by batch."""

    place: str  # the file, for messages
    schema: pa.Schema
    rows: int
    batches: Callable[[str], Iterable[pa.Array]]  # the contents of one column, in order


def parquet_table(path: Path) -> Table:
    """A parquet file, opened but not read."""
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise RequestError(f"{path}: not a readable parquet file ({_line(error)})") from error

    def batches(column: str) -> Iterable[pa.Array]:
        try:
            for batch in file.iter_batches(batch_size=_BATCH, columns=[column]):
                yield batch.column(0)
        except (pa.ArrowException, OSError) as error:
            raise RequestError(
                f"{path}: column '{column}' cannot be read ({_line(error)}); copy the file again"
            ) from error

    return Table(str(path), file.schema_arrow, file.metadata.num_rows, batches)


class Rows:
    """The tables (shards) of a split as one sequence of rows."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = [table for table in tables if table.rows]
        if not self.tables:
            raise RequestError(f"{tables[0].place}: the file holds no records")
        self._ends = list(itertools.accumulate(table.rows for table in self.tables))
        self.count = self._ends[-1]

    def where(self, row: int) -> str:
        """The file and the row in it, for messages."""
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
        chunks = [chunk for table in self.tables for chunk in table.batches(name)]
        if pa.types.is_dictionary(chunks[0].type):
            chunks = [chunk.dictionary_decode() for chunk in chunks]
        try:
            column = pa.chunked_array(chunks)
        except pa.ArrowException as error:
            raise RequestError(
                f"{self.tables[0].place}: column '{name}' has another type in another shard"
            ) from error
        if column.null_count:
            row = int(np.flatnonzero(pc.is_null(column).to_numpy())[0])
            raise RequestError(f"{self.where(row)}: column '{name}' is empty (null); fill it")
        return column

    def class_names(self, label: str) -> tuple[str, ...] | None:
        """Names of the classes from the schema's metadata, where they are given."""
        metadata = self.tables[0].schema.metadata or {}
        try:
            names: Any = json.loads(metadata[b"huggingface"])["info"]["features"][label]["names"]
            return tuple(str(name) for name in names)
        except (KeyError, TypeError, ValueError):
            return None

    def labels(self, column: str) -> NDArray[np.int64] | NDArray[np.str_]:
        """A whole label column: class numbers, or words."""
        values = self.column(column)
        if not _is_text(values.type):
            return _integers(values, column, self)
        return _text(values)

    def images(self, column: str, form: ImageForm) -> Tensor:
        """All images decoded, in order."""
        out = form.empty(self.count)
        start = 0
        for table in self.tables:
            for chunk in table.batches(column):
                encoded = _encoded(chunk, column, table.place)
                room = out[start : start + len(encoded)]
                decode_images(encoded, form, room, lambda i, start=start: self.where(start + i))  # type: ignore[misc]
                start += len(encoded)
        return torch.from_numpy(out)

    def first_image(self, column: str) -> Encoded:
        """The image that decides the form of all."""
        chunk = next(iter(self.tables[0].batches(column)))
        return _encoded(chunk.slice(0, 1), column, self.tables[0].place)[0]


def decode_tables(
    train_tables: Sequence[Table],
    test_tables: Sequence[Table],
    columns: Columns,
    image_size: int | None,
    channels: int | None = None,
) -> Decoded:
    """Both splits, decoded alike: the training split decides form and classes.

    Without test tables, every fifth record of each owner is held out.
    """
    train = Rows(train_tables)
    test = Rows(test_tables) if test_tables else None
    label = train.find(columns.label, LABEL_COLUMNS, "data.label_column")
    image = train.find(columns.image, IMAGE_COLUMNS, "data.image_column")
    if test is not None:
        test.find(label, (), "data.label_column")
        test.find(image, (), "data.image_column")
    # Both are read before any image: a wrong label shows at once.
    train_labels, test_labels, names = _labels(train, test or train, label)
    groups, test_groups, group_names = _groups(train, test, columns)
    form = ImageForm.of_first(train.first_image(image), image_size, train.where(0), channels)
    whole = Split(train.images(image, form), train_labels, groups)
    if test is None:
        kept, fifth = hold_out(whole)
        if not len(fifth):
            raise RequestError(
                f"{train.tables[0].place}: no owner has five records, of which one could be held "
                "out for the test; give test.parquet too"
            )
        return Decoded(kept, fifth, names, group_names)
    held_out = Split(test.images(image, form), test_labels, test_groups)
    return Decoded(whole, held_out, names, group_names)


def text_tables(
    train_tables: Sequence[Table], test_tables: Sequence[Table], columns: Columns
) -> tuple[Texts, Texts | None]:
    """The texts of every owner in both splits; no test texts without test tables."""
    train = Rows(train_tables)
    test = Rows(test_tables) if test_tables else None
    return _texts(train, columns), None if test is None else _texts(test, columns)


def _texts(rows: Rows, columns: Columns) -> Texts:
    text = rows.find(columns.text, TEXT_COLUMNS, "data.text_column")
    owner = rows.find(columns.client, columns.owners, "data.client_column")
    moving = text == "x" and NEXT_COLUMN in rows.tables[0].schema.names
    wanted = [owner, text, NEXT_COLUMN] if moving else [owner, text]

    def values() -> Iterator[tuple[str, ...]]:
        for table in rows.tables:
            found = (column_values(table.batches(name), name, table.place) for name in wanted)
            yield from zip(*found, strict=True)

    join: Callable[[Iterable[Any]], Texts] = join_windows if moving else join_posts
    return join(values())


def _groups(
    train: Rows, test: Rows | None, columns: Columns
) -> tuple[Tensor | None, Tensor | None, tuple[str, ...]]:
    """Owners of the training and (where they are known) of the test records, and their names."""
    if columns.client is None and not columns.owners:
        return None, None, ()
    client = train.find(columns.client, columns.owners, "data.client_column")
    owners = _owners(train, client)
    groups, names = number_groups(owners)
    if test is None or any(client not in table.schema.names for table in test.tables):
        return groups, None, names
    test_groups, names = number_more_groups(_owners(test, client), names)
    return groups, test_groups, names


def _labels(train: Rows, test: Rows, column: str) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    names, test_names = train.class_names(column), test.class_names(column)
    if names is not None and test_names is not None and names != test_names:
        raise RequestError(
            f"{test.tables[0].place}: the classes of column '{column}' are not those of "
            f"{train.tables[0].place} ({_differ(names, test_names)})"
        )
    in_train, in_test = train.column(column), test.column(column)
    if _is_text(in_train.type) and _is_text(in_test.type):
        train_labels, test_labels, names = match_names(_text(in_train), _text(in_test), test.where)
    else:
        train_labels = _integers(in_train, column, train)
        test_labels = _integers(in_test, column, test)
        names = names or number_classes(train_labels, train.where)
    classes = len(names)
    return (
        check_labels(train_labels, classes, train.where),
        check_labels(test_labels, classes, test.where),
        names,
    )


def _integers(
    column: pa.ChunkedArray, name: str, rows: Rows, role: str = "label"
) -> NDArray[np.int64]:
    if not (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
        raise RequestError(
            f"{rows.tables[0].place}: column '{name}' holds {column.type}, neither numbers nor "
            f"words; name another one in data.{role}_column"
        )
    return column.to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def _owners(rows: Rows, name: str) -> NDArray[np.generic]:
    column = rows.column(name)
    return _text(column) if _is_text(column.type) else _integers(column, name, rows, "client")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _text(column: pa.ChunkedArray) -> NDArray[np.str_]:
    return np.asarray(column.to_pylist(), dtype=np.str_)


def _encoded(chunk: pa.Array, column: str, place: str) -> list[Encoded]:
    if pa.types.is_struct(chunk.type) and chunk.type.get_field_index("bytes") >= 0:
        chunk = pc.struct_field(chunk, "bytes")
    if not (pa.types.is_binary(chunk.type) or pa.types.is_large_binary(chunk.type)):
        raise RequestError(
            f"{place}: column '{column}' holds {chunk.type}, not encoded images; "
            "name another one in data.image_column"
        )
    return chunk.to_pylist()  # type: ignore[no-any-return]


def _differ(names: tuple[str, ...], others: tuple[str, ...]) -> str:
    if len(names) != len(others):
        return f"{len(others)} classes, not {len(names)}"
    at = next(i for i, (a, b) in enumerate(zip(names, others, strict=True)) if a != b)
    return f"class {at} is '{others[at]}', not '{names[at]}'"


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).split("\n")[0]
