"""A node's records: training data in any of the usual forms, fitted to the given task.

What the task says is public and fixed (shape, names of the classes); a node may hold few of the
classes, and needs no test split. Records that do not fit are refused with the reason, or, with
privacy on, do not count (``tolerant.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstill.data.cache import cached
from fedstill.data.column import Column
from fedstill.data.decoded import Decoded
from fedstill.data.folder import class_folders, image_files
from fedstill.data.images import ImageForm, decode_images
from fedstill.data.labels import Numbered, check_labels
from fedstill.data.npz import read_training_arrays
from fedstill.data.settings import DataSettings
from fedstill.data.table_files import IMAGE_COLUMNS, find_tables, open_table, split_files
from fedstill.data.tolerant import from_arrays, from_features, from_images, from_parquet
from fedstill.errors import RequestError, did_you_mean
from fedstill.records import Split


@dataclass(frozen=True)
class _Form:
    """What the task expects."""

    shape: tuple[int, ...]
    class_names: tuple[str, ...]
    columns: tuple[Column, ...] = ()

    def label(self, name: str, where: str) -> int:
        if name not in self.class_names:
            raise RequestError(
                f"{where}: no class '{name}' in the task{did_you_mean(name, self.class_names)}"
            )
        return self.class_names.index(name)

    def check(self, split: Split, path: Path) -> Split:
        shape = tuple(split.inputs.shape[1:])
        if shape != self.shape:
            raise RequestError(
                f"{path}: records of shape {shape}, the task has {self.shape}; "
                "images are resized by image-size in the node's configuration"
            )
        return split


def load_node_data(
    path: Path,
    settings: DataSettings,
    shape: tuple[int, ...],
    class_names: tuple[str, ...],
    columns: tuple[Column, ...] = (),
    *,
    tolerant: bool = False,
) -> Split:
    """All training records at ``path``, as this task needs them.

    An ``.npz`` file with x_train and y_train, a table (a CSV or parquet file, or a folder with
    train.parquet), or a folder with one folder of images per class (there, or in train/).
    ``columns`` are the features of the task's tables. ``tolerant``: records that do not fit are
    left out, and there may be none.
    """
    path = path.expanduser()
    form = _Form(shape, class_names, columns)
    try:
        if columns and (files := _tables(path)):
            read = _tolerant_features if tolerant else _from_features
            return form.check(_cached(path, files, form, settings, read), path)
        if tolerant:
            return _tolerant(path, form, settings)
        if path.is_file():
            x, y = read_training_arrays(path, settings.image_size)
            labels = _labels(y, form, lambda row: f"{path}, y_train[{row}]")
            return form.check(Split(torch.from_numpy(x), labels), path)
        if not path.is_dir():
            raise RequestError(f"{path}: no such file or folder")
        if files := split_files(path, "train"):
            return form.check(_cached(path, files, form, settings, _from_parquet), path)
        root = path / "train" if (path / "train").is_dir() else path
        files = [file for kind in class_folders(root) for file in image_files(kind)]
        if files:
            return form.check(_cached(path, files, form, settings, _from_images), path)
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror or error}") from error
    raise RequestError(f"{path}: neither train.parquet, nor one folder of images per class")


def _tables(path: Path) -> list[Path]:
    """The node's files of rows: all of a folder without a split are its training rows."""
    files = find_tables(path)
    return list(files.train) if files else []


def _tolerant(path: Path, form: _Form, settings: DataSettings) -> Split:
    if path.is_file():
        return from_arrays(path, form.shape, form.class_names, settings.image_size)
    size = settings.image_size
    if len(form.shape) != 3 or (size is not None and form.shape[1:] != (size, size)):
        raise RequestError(
            f"{path}: images of size {size or 'as stored'}, the task has shape {form.shape}"
        )
    if not path.is_dir():
        raise RequestError(f"{path}: no such file or folder")
    if files := split_files(path, "train"):
        return _cached(path, files, form, settings, _tolerant_parquet)
    root = path / "train" if (path / "train").is_dir() else path
    images = [file for kind in class_folders(root) for file in image_files(kind)]
    files = [file for file in images if file.is_file()]  # no dangling links
    return _cached(path, files, form, settings, _tolerant_images)


def _tolerant_parquet(files: Sequence[Path], form: _Form, settings: DataSettings) -> Split:
    return from_parquet(files, settings, form.shape, form.class_names)


def _tolerant_features(files: Sequence[Path], form: _Form, settings: DataSettings) -> Split:
    return from_features(files, settings, form.columns, form.class_names)


def _tolerant_images(files: Sequence[Path], form: _Form, settings: DataSettings) -> Split:
    return from_images(files, form.shape, form.class_names, settings.image_size is not None)


_Decode = Callable[[Sequence[Path], _Form, DataSettings], Split]


def _cached(
    path: Path, files: Sequence[Path], form: _Form, settings: DataSettings, decode: _Decode
) -> Split:
    """Decoded once: a node of a deployment starts a new process for every message."""

    def whole() -> Decoded:
        split = decode(files, form, settings)
        return Decoded(split, Split(split.inputs[:0], split.labels[:0]), form.class_names)

    key = {
        "own": form.class_names,
        "columns": (settings.image_column, settings.label_column, settings.split_column),
        "features": msgspec.to_builtins(form.columns),
        "image_size": settings.image_size,
        "reader": decode.__name__,
        "shape": form.shape,
    }
    return cached(path.name or "own", files, key, whole)[0].train


def _from_parquet(files: Sequence[Path], form: _Form, settings: DataSettings) -> Split:
    # Here: pyarrow is slow to import for a cache hit.
    from fedstill.data.columns import LABEL_COLUMNS
    from fedstill.data.rows import Rows, parquet_table

    rows = Rows([parquet_table(file) for file in files])
    label = rows.find(settings.label_column, LABEL_COLUMNS, "data.label_column")
    image = rows.find(settings.image_column, IMAGE_COLUMNS, "data.image_column")
    size, channels = settings.image_size, form.shape[0]
    first = ImageForm.of_most(rows.encoded(image), size, rows.where(0), channels)
    by_name = rows.class_names(label) is None
    labels = _labels(rows.names_or_numbers(label), form, rows.where, by_name)
    return Split(rows.images(image, first), labels)


def _from_features(files: Sequence[Path], form: _Form, settings: DataSettings) -> Split:
    # Here: pyarrow is slow to import for a cache hit.
    from fedstill.data.columns import TABLE_LABELS
    from fedstill.data.encoding import encode
    from fedstill.data.rows import Rows

    rows = Rows([open_table(file) for file in files])
    if settings.split_column is not None:
        rows = rows.training(rows.find(settings.split_column, (), "split-column"))
        if not rows.count:
            raise RequestError(
                f"{files[0]}: column '{settings.split_column}' says train in no row; name another "
                "one in split-column"
            )
    label = rows.find(settings.label_column, TABLE_LABELS, "label-column")
    labels = _labels(rows.names_or_numbers(label), form, rows.where)
    return Split(encode(rows, form.columns), labels)


def _labels(
    values: NDArray[np.int64] | NDArray[np.str_],
    form: _Form,
    where: Callable[[int], str],
    by_name: bool = True,
) -> Tensor:
    """The classes of names or numbers. A number is a name where the task's classes are called by
    numbers, unless the file itself has names for them (``by_name=False``)."""
    if values.dtype.kind == "i":
        labels = values.astype(np.int64)
        if by_name and (numbered := Numbered.of(form.class_names)) is not None:
            labels = numbered.checked(labels, where)
        return check_labels(labels, len(form.class_names), where)
    numbers = [form.label(str(name), where(row)) for row, name in enumerate(values)]
    return torch.tensor(numbers, dtype=torch.int64)


def _from_images(files: Sequence[Path], form: _Form, settings: DataSettings) -> Split:
    first = ImageForm.of_first(files[0], settings.image_size, str(files[0]), form.shape[0])
    out = first.empty(len(files))
    decode_images(files, first, out, lambda i: str(files[i]))
    labels = [form.label(file.parent.name, str(file.parent)) for file in files]
    return Split(torch.from_numpy(out), torch.tensor(labels, dtype=torch.int64))
