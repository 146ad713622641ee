"""Which columns of a split's tables become inputs, labels and owners."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedstill.data.column import Column
from fedstill.data.decoded import Decoded
from fedstill.data.features import Declared, encode, fit_columns
from fedstill.data.held_out import SHARE, by_column, hold_out_evenly
from fedstill.data.images import ImageForm
from fedstill.data.labels import (
    check_class_names,
    check_labels,
    check_names,
    match_names,
    number_classes,
    number_groups,
    number_more_groups,
)
from fedstill.data.natural import every_fifth
from fedstill.data.rows import Rows, Table, is_text, is_text_type
from fedstill.data.table_files import IMAGE_COLUMNS
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

LABEL_COLUMNS = ("label", "labels", "fine_label", "character")
TABLE_LABELS = (*LABEL_COLUMNS, "target", "class")  # of rows of numbers and categories


@dataclass(frozen=True)
class Columns:
    """Names of the columns that matter; ``None`` means: look for the usual names.

    ``owners`` are the usual names of the client column. Without any, and without ``client``,
    records have no owners, unless each has a file of its own.
    """

    image: str | None = None
    label: str | None = None
    client: str | None = None
    text: str | None = None
    owners: tuple[str, ...] = ()
    split: str | None = None


@dataclass(frozen=True)
class Division:
    """How records without test tables are divided: a share of every class of every owner."""

    share: float = SHARE
    seed: int = 0
    every_fifth: bool = False  # in the order of the file, as for data sets known by name


def image_column(schema: Any, named: str | None) -> str | None:
    """The column of images, encoded or as paths; ``None``: the records are rows of features."""
    if named is not None:
        return named
    return next((name for name in IMAGE_COLUMNS if name in schema.names), None)


def named_images(tables: Sequence[Table], column: str | None) -> list[Path]:
    """The files that a column of paths names, those that are there."""
    found: set[Path] = set()
    for table in tables:
        image = image_column(table.schema, column)
        if image is None or image not in table.schema.names:
            continue
        if is_text_type(table.schema.field(image).type):
            found.update(path for path in Rows([table]).encoded(image) if isinstance(path, Path))
    return sorted(path for path in found if path.is_file())


def decode_tables(
    train_tables: Sequence[Table],
    test_tables: Sequence[Table],
    columns: Columns,
    image_size: int | None,
    channels: int | None = None,
    declared: Mapping[str, Any] | None = None,
    division: Division | None = None,
) -> Decoded:
    """Both splits, decoded alike: the training split decides form and classes."""
    whole = Rows(train_tables)
    schema = whole.tables[0].schema
    image = image_column(schema, columns.image)
    usual = LABEL_COLUMNS if image else TABLE_LABELS
    label = whole.find(columns.label, usual, "data.label_column")
    test = Rows(test_tables) if test_tables else None
    for rows in (whole, *([test] if test else [])):
        rows.find(label, (), "data.label_column")
        if image is not None:
            rows.find(image, (), "data.image_column")
    client = _client_column(whole, columns)
    others = [name for name in (label, columns.split, client) if name is not None]
    known = Declared(**(declared or {}))
    features = [] if image else known.names(whole, others)
    train, test, ours = _divided(whole, test, label, columns, division or Division())
    # Both are read before any image: a wrong label shows at once.
    if ours:  # then every class is a class, wherever its records are
        labels, _, names = _labels(whole, whole, label)
        train_labels, test_labels = labels[train.positions], labels[test.positions]
    else:
        train_labels, test_labels, names = _labels(train, test, label)
    groups, test_groups, group_names = _groups(train, test, columns)
    fitted: tuple[Column, ...] = ()
    if image is not None:
        form = ImageForm.of_most(train.encoded(image), image_size, train.where(0), channels)
        inputs, test_inputs = train.images(image, form), test.images(image, form)
    else:
        fitted = fit_columns(train, features, known)
        inputs, test_inputs = encode(train, fitted), encode(test, fitted)
    return Decoded(
        Split(inputs, train_labels, groups),
        Split(test_inputs, test_labels, test_groups),
        names,
        group_names,
        fitted,
    )


def _divided(
    whole: Rows, test: Rows | None, label: str, columns: Columns, division: Division
) -> tuple[Rows, Rows, bool]:
    """Training and test rows (two files, a column, or a share that is held out), and whether the
    division is ours."""
    place = whole.tables[0].place
    if columns.split is not None:
        if test is not None:
            raise RequestError(
                f"data.split_column = '{columns.split}': there is {test.tables[0].place}; "
                "leave it out"
            )
        column = whole.find(columns.split, (), "data.split_column")
        first, second = by_column(whole.names_or_numbers(column, "split"), column, place)
        return whole.chosen(first), whole.chosen(second), False
    if test is not None:
        return whole, test, False
    client = _client_column(whole, columns)
    owners = whole.names_or_numbers(client, "client") if client else whole.owners
    if division.every_fifth:
        held = every_fifth(owners if owners is not None else np.zeros(whole.count))
    else:
        labels = whole.names_or_numbers(label)
        held = hold_out_evenly(labels, owners, division.share, division.seed)
    if not held.any():
        few = "five" if division.every_fifth else "three"
        raise RequestError(
            f"{place}: no owner has {few} records, of which one could be held out for the test; "
            "give test.parquet too"
        )
    return whole.chosen(~held), whole.chosen(held), True


def _client_column(rows: Rows, columns: Columns) -> str | None:
    """The column of owners, if there is one."""
    if columns.client is None and not columns.owners:
        return None
    return rows.find(columns.client, columns.owners, "data.client_column")


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
    train: Rows, test: Rows, columns: Columns
) -> tuple[Tensor | None, Tensor | None, tuple[str, ...]]:
    """Owners of the training and (where they are known) of the test records, and their names."""
    client = _client_column(train, columns)
    if client is None:
        if train.owners is None or test.owners is None:
            return None, None, ()
        place = f"{train.tables[0].place}: the file's name"
        groups, names = number_groups(train.owners)
        test_groups, names = number_more_groups(test.owners, names)
        return groups, test_groups, check_names(names, place)
    groups, names = number_groups(train.names_or_numbers(client, "client"))
    place = f"{train.tables[0].place}, column '{client}'"
    if any(client not in table.schema.names for table in test.tables):
        return groups, None, check_names(names, place)
    owners = test.names_or_numbers(client, "client")
    test_groups, names = number_more_groups(owners, names)
    return groups, test_groups, check_names(names, place)


def _labels(train: Rows, test: Rows, column: str) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    names, test_names = train.class_names(column), test.class_names(column)
    if names is not None and test_names is not None and names != test_names:
        raise RequestError(
            f"{test.tables[0].place}: the classes of column '{column}' are not those of "
            f"{train.tables[0].place} ({_differ(names, test_names)})"
        )
    in_train, in_test = train.column(column), test.column(column)
    if is_text(in_train) and is_text(in_test):
        texts = train.as_texts(in_train, column), test.as_texts(in_test, column)
        train_labels, test_labels, names = match_names(*texts, test.where)
        names = check_class_names(names, f"{train.tables[0].place}, column '{column}'")
    else:
        train_labels = train.as_integers(in_train, column)
        test_labels = test.as_integers(in_test, column)
        if names is None:
            numbered = number_classes(train_labels, train.where)
            train_labels = numbered.positions(train_labels)
            test_labels = numbered.checked(test_labels, test.where)
            names = numbered.names
    classes = len(names)
    return (
        check_labels(train_labels, classes, train.where),
        check_labels(test_labels, classes, test.where),
        names,
    )


def _differ(names: tuple[str, ...], others: tuple[str, ...]) -> str:
    if len(names) != len(others):
        return f"{len(others)} classes, not {len(names)}"
    at = next(i for i, (a, b) in enumerate(zip(names, others, strict=True)) if a != b)
    return f"class {at} is '{others[at]}', not '{names[at]}'"
