"""Which columns of a split's tables become inputs, labels and owners."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedstill.data.decoded import Decoded
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
from fedstill.data.natural import hold_out
from fedstill.data.rows import Rows, Table, is_text
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
    groups, names = number_groups(train.names_or_numbers(client, "client"))
    place = f"{train.tables[0].place}, column '{client}'"
    if test is None or any(client not in table.schema.names for table in test.tables):
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
        names = names or number_classes(train_labels, train.where)
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
