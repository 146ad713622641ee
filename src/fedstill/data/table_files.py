"""Which files of a folder are tables, and what each of them is: a split, or one client's rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedstill.data.rows import Table

_CSV = (".csv", ".tsv")
IMAGE_COLUMNS = ("image", "img")  # their usual names
SUFFIXES = (*_CSV, ".parquet")


@dataclass(frozen=True)
class TableFiles:
    """The files of both splits. ``per_owner``: each training file is one client's."""

    train: tuple[Path, ...]
    test: tuple[Path, ...] = ()
    per_owner: bool = False

    @property
    def all(self) -> tuple[Path, ...]:
        """Every file that is read."""
        return (*self.train, *self.test)

    def tables(self) -> "tuple[list[Table], list[Table]]":
        """The tables of both splits, opened."""
        train = [open_table(file) for file in self.train]
        if self.per_owner:
            owned = zip(train, self.train, strict=True)
            train = [replace(table, owner=file.stem) for table, file in owned]
        return train, [open_table(file) for file in self.test]


def open_table(path: Path, *, tolerant: bool = False) -> "Table":
    """A file of rows, by its suffix."""
    # Here: pyarrow is slow to import for a cache hit.
    if path.suffix.lower() in _CSV:
        from fedstill.data.csv_files import csv_table, tolerant_csv_table

        return tolerant_csv_table(path) if tolerant else csv_table(path)
    from fedstill.data.rows import parquet_table

    return parquet_table(path)


def column_names(path: Path) -> tuple[str, ...]:
    """The names of a file's columns; nothing else is read."""
    if path.suffix.lower() in _CSV:
        from fedstill.data.csv_files import csv_names

        return tuple(csv_names(path))
    return tuple(open_table(path).schema.names)


def find_tables(path: Path) -> TableFiles | None:
    """The tables that a path means: one file, two splits, or one file per client."""
    if path.is_file():
        return TableFiles((path,)) if path.suffix.lower() in SUFFIXES else None
    train, test = split_files(path, "train"), split_files(path, "test")
    if train:
        return TableFiles(tuple(train), tuple(test))
    if test or not path.is_dir():
        return None
    for kind in (_CSV, (".parquet",)):
        if files := _files(path, kind):
            return TableFiles(tuple(files), per_owner=len(files) > 1)
    return None


def split_files(folder: Path, split: str) -> list[Path]:
    """The file or the shards of a split, there or below ``data/`` as in a copy of a hub page."""
    for root in (folder, folder / "data"):
        for suffix in (".parquet", *_CSV):
            if (whole := root / f"{split}{suffix}").is_file():
                return [whole]
        if shards := sorted(root.glob(f"{split}-*.parquet")):
            return shards
    return []


def _files(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    return sorted(
        file
        for file in folder.iterdir()
        if file.suffix.lower() in suffixes and not file.name.startswith(".") and file.is_file()
    )
