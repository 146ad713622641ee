"""A node's records where privacy is on: a record that does not fit the task does not count.

Whether loading succeeds may not depend on a record: an image that cannot be decoded, a label that
the task does not have, a number that is not finite would otherwise tell the server, by an error,
that the record is there. So such records are left out, and a node without a single record is an
empty one, which answers with noise. The form of all records is the task's, never that of the first
one. What is left out is written to the node's log.

Files that cannot be read as a whole, or have no such column, are an error here, which the node
answers with noise alone (``engine/flower/node.py``).
"""

import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedstill.data.column import Column, width_of
from fedstill.data.images import Encoded, ImageForm, decode_images
from fedstill.data.labels import Numbered
from fedstill.data.npz import read_raw_arrays
from fedstill.data.settings import DataSettings
from fedstill.data.table_files import IMAGE_COLUMNS, open_table
from fedstill.errors import RequestError
from fedstill.records import Split

NO_CLASS = -1


def classes_of(
    names: Sequence[Any], class_names: tuple[str, ...], by_name: bool = True
) -> NDArray[np.int64]:
    """The class of every name or number; ``NO_CLASS`` for one that the task does not have.

    A number is a name where the task's classes are called by numbers, unless the file itself has
    names for them (``by_name=False``).
    """
    places = {name: place for place, name in enumerate(class_names)}
    numbered = by_name and Numbered.of(class_names) is not None

    def place(name: Any) -> int:
        if isinstance(name, float) and name.is_integer():
            name = int(name)
        if isinstance(name, int):
            name = int(name)  # True is 1
            known = 0 <= name < len(class_names)
            return places.get(str(name), NO_CLASS) if numbered else name if known else NO_CLASS
        return places.get(name, NO_CLASS) if isinstance(name, str) else NO_CLASS

    return np.array([place(name) for name in names], dtype=np.int64)


def from_images(
    files: Sequence[Path], shape: tuple[int, ...], class_names: tuple[str, ...], resize: bool
) -> Split:
    """Image files, each in the folder of its class."""
    labels = classes_of([file.parent.name for file in files], class_names)
    return _decoded(iter(files), labels, shape, resize)


def from_parquet(
    files: Sequence[Path],
    settings: DataSettings,
    shape: tuple[int, ...],
    class_names: tuple[str, ...],
) -> Split:
    """Tables of encoded images."""
    # Here: pyarrow is slow to import for a cache hit.
    from fedstill.data.columns import LABEL_COLUMNS
    from fedstill.data.rows import Rows, parquet_table

    rows = Rows([parquet_table(file) for file in files], empty=True)
    label = rows.find(settings.label_column, LABEL_COLUMNS, "label-column")
    image = rows.find(settings.image_column, IMAGE_COLUMNS, "image-column")
    by_name = rows.class_names(label) is None
    labels = classes_of(rows.values(label), class_names, by_name)
    return _decoded(rows.encoded(image), labels, shape, settings.image_size is not None)


def from_features(
    files: Sequence[Path],
    settings: DataSettings,
    columns: Sequence[Column],
    class_names: tuple[str, ...],
) -> Split:
    """Tables of numbers and categories: a row of another length or with a value that does not fit
    its column does not count."""
    # Here: pyarrow is slow to import for a cache hit.
    from fedstill.data.columns import TABLE_LABELS
    from fedstill.data.encoding import encode_leniently
    from fedstill.data.rows import Rows

    rows = Rows([open_table(file, tolerant=True) for file in files], empty=True)
    if settings.split_column is not None:
        rows = rows.training(rows.find(settings.split_column, (), "split-column"))
    label = rows.find(settings.label_column, TABLE_LABELS, "label-column")
    values = rows.values(label)
    labels = classes_of([v if v in class_names else _number(v) for v in values], class_names)
    if not rows.count:
        nothing = np.zeros((0, width_of(columns)), dtype=np.float32)
        return _kept(nothing, labels, labels != NO_CLASS)
    features, bad = encode_leniently(rows, columns)
    good = labels != NO_CLASS
    for flags in bad.values():
        good &= ~flags
    return _kept(features, labels, good)


def _number(label: Any) -> Any:
    """A label of a CSV file, where all values are text: a whole number, or as it is."""
    if isinstance(label, str) and re.fullmatch(r"\d{1,18}(\.0+)?", label):
        return int(label.partition(".")[0])
    return label


def _decoded(
    encoded: Iterator[Encoded], labels: NDArray[np.int64], shape: tuple[int, ...], resize: bool
) -> Split:
    channels, height, width = shape
    form = ImageForm(channels, height, width, resize=resize)
    out = form.empty(len(labels))
    good = labels != NO_CLASS
    for row, image in enumerate(encoded):
        try:
            if good[row]:
                decode_images([image], form, out[row : row + 1], lambda _: "")
        except RequestError:
            good[row] = False
    return _kept(out, labels, good)


def from_arrays(
    path: Path, shape: tuple[int, ...], class_names: tuple[str, ...], image_size: int | None
) -> Split:
    """An ``.npz`` file with x_train and y_train."""
    x, y = read_raw_arrays(path, image_size)
    if tuple(x.shape[1:]) != shape:
        raise RequestError(f"{path}: records of shape {x.shape[1:]}, the task has {shape}")
    good: NDArray[np.bool_] = np.ones(len(x), dtype=bool)
    if np.issubdtype(x.dtype, np.floating):
        x = x.astype(np.float32)
        good = _every(np.isfinite(x))
    elif x.dtype != np.uint8:
        good = _every((x >= 0) & (x <= 255))
        x = np.clip(x, 0, 255).astype(np.uint8)
    labels = classes_of(y.tolist(), class_names)
    return _kept(x, labels, good & (labels != NO_CLASS))


def _every(flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.asarray(flags.reshape(len(flags), -1).all(axis=1))


def _kept(inputs: NDArray[Any], labels: NDArray[np.int64], good: NDArray[np.bool_]) -> Split:
    if left_out := int((~good).sum()):
        warnings.warn(
            f"{left_out} of {len(good)} records do not fit the task and do not count",
            stacklevel=2,
        )
    return Split(torch.from_numpy(inputs[good]), torch.from_numpy(labels[good]))
