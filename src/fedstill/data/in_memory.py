"""Data that a program has in memory, in any of the usual forms, as one ``Dataset``.

Arrays ``(X, y)`` or ``(X_train, y_train, X_test, y_test)``, a ``torch.utils.data.Dataset``, a
pandas frame, an Arrow table, a ``datasets.Dataset`` of Hugging Face; a dict of ``train`` and
``test`` of these (a ``DatasetDict`` is one); a list of any of these, or a dict by name: one client
each. None of the libraries is imported: an object is known by what it can do.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedstill.data.arrays import dataset_of, decode_arrays, held_out_rows
from fedstill.data.dataset import Dataset
from fedstill.data.reading import Reading, refuse_other_kind
from fedstill.data.scaling import choose_scaling
from fedstill.data.settings import DataSettings
from fedstill.data.table_files import open_table
from fedstill.errors import RequestError

if TYPE_CHECKING:
    from fedstill.data.rows import Table

TEST_NAMES = ("test", "validation", "valid", "val")
_FORMS = (
    "a name, a path, a Dataset, (X, y), (X_train, y_train, X_test, y_test), a torch Dataset, a "
    "pandas frame, an Arrow table, a Hugging Face Dataset or DatasetDict, or a list of these with "
    "one per client"
)


@dataclass(frozen=True)
class Arrays:
    """Inputs and labels of some records."""

    x: NDArray[Any]
    y: NDArray[Any]


@dataclass(frozen=True)
class Piece:
    """What one owner has: its training and (if it says so) test records."""

    train: "Arrays | Table"
    test: "Arrays | Table | None"
    owner: str | None


def dataset_from(
    data: Any, settings: DataSettings | None = None, name: str = "own data"
) -> Dataset:
    """The data set in these objects; ``settings`` is the ``[data]`` section of the request."""
    settings = settings or DataSettings()
    pieces = _pieces(data)
    kinds = {isinstance(piece.train, Arrays) for piece in pieces}
    if len(kinds) > 1:
        raise RequestError("data: some clients have arrays and others tables; give all the same")
    make = _from_arrays if kinds == {True} else _from_tables
    return make(pieces, settings, name)


def _pieces(data: Any) -> list[Piece]:
    if isinstance(data, Mapping) and "train" not in data:
        owned = [(str(owner), value) for owner, value in data.items()]
    elif isinstance(data, list):
        digits = len(str(len(data) - 1))  # client 10 comes after client 9
        owned = [(f"{number:0{digits}d}", value) for number, value in enumerate(data)]
    else:
        return [_piece(None, data)]
    if not owned:
        raise RequestError("data: it is empty; give one data set per client")
    return [_piece(owner, value) for owner, value in owned]


def _piece(owner: str | None, value: Any) -> Piece:
    place = "data" if owner is None else f"data of client '{owner}'"
    test: Any = None
    if isinstance(value, Mapping):
        if "train" not in value:
            raise RequestError(f"{place}: a dict without 'train'; expected {_FORMS}")
        test = next((value[name] for name in TEST_NAMES if name in value), None)
        value = value["train"]
    elif isinstance(value, tuple) and len(value) == 4:
        value, test = (value[0], value[1]), (value[2], value[3])
    elif isinstance(value, tuple) and len(value) == 2 and not _is_array(value[0]):  # two splits
        value, test = value
    return Piece(
        _part(value, f"{place}, train"),
        None if test is None else _part(test, f"{place}, test"),
        owner,
    )


def _part(value: Any, place: str) -> "Arrays | Table":
    """One split of one owner, known by what it can do."""
    if isinstance(value, tuple) and len(value) == 2 and _is_array(value[0]):
        x, y = (_as_array(part, place) for part in value)
        return _checked(x, y, place)
    if isinstance(value, str | os.PathLike):
        return open_table(Path(value).expanduser())
    if hasattr(value, "with_format") and hasattr(value, "features"):
        from fedstill.data.hub import stored_table  # here: pyarrow is slow to import

        return stored_table(value, place)
    if hasattr(value, "to_parquet") and hasattr(value, "columns"):  # a pandas frame
        import pyarrow as pa

        return _arrow_table(pa.Table.from_pandas(value, preserve_index=False), place)
    if hasattr(value, "to_batches") and hasattr(value, "schema"):
        return _arrow_table(value, place)
    if hasattr(value, "__getitem__") and hasattr(value, "__len__"):
        return _from_items(value, place)
    raise RequestError(f"{place}: a {type(value).__name__} is none of: {_FORMS}")


def _from_items(value: Any, place: str) -> Arrays:
    """A torch Dataset of pairs of an input and a label."""
    inputs, labels = [], []
    for number in range(len(value)):
        item = value[number]
        if not isinstance(item, tuple | list) or len(item) < 2:
            raise RequestError(
                f"{place}[{number}]: a {type(item).__name__} in place of an input and its label"
            )
        inputs.append(_as_array(item[0], place))
        labels.append(_as_array(item[1], place))
        if inputs[-1].shape != inputs[0].shape or labels[-1].shape != ():
            raise RequestError(
                f"{place}[{number}]: an input of shape {inputs[-1].shape} with a label of shape "
                f"{labels[-1].shape}; the first input is of shape {inputs[0].shape}, and a label "
                "is one number or word"
            )
    if not inputs:
        raise RequestError(f"{place}: it holds no records")
    return _checked(np.stack(inputs), np.stack(labels), place)


def _checked(x: NDArray[Any], y: NDArray[Any], place: str) -> Arrays:
    if x.ndim < 2 or y.shape != x.shape[:1] or not len(x):
        raise RequestError(
            f"{place}: inputs of shape {x.shape} and labels of shape {y.shape}; give [N, ...] and "
            "[N], N at least 1"
        )
    return Arrays(x, y)


def _is_array(value: Any) -> bool:
    """Whether this is an array, or nested lists of numbers."""
    if isinstance(value, np.ndarray | Tensor):
        return True
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, int | float | np.number)


def _as_array(value: Any, place: str) -> NDArray[Any]:
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    try:
        array = np.asarray(value)
    except ValueError as error:  # ragged lists
        raise RequestError(f"{place}: not one array: its rows differ in length") from error
    if hasattr(value, "getbands") and array.ndim == 3:  # a PIL image has its channels last
        array = array.transpose(2, 0, 1)
    if array.dtype == object:
        texts = np.array([v if isinstance(v, str) else None for v in array.ravel()], dtype=object)
        if array.ndim != 1 or None in texts.tolist():
            raise RequestError(f"{place}: a {type(value).__name__} is no array of numbers or words")
        array = array.astype(np.str_)
    return array


def _arrow_table(table: Any, place: str) -> "Table":
    from fedstill.data.rows import Table

    def batches(column: str) -> Any:
        return table.column(column).chunks

    return Table(place, table.schema, table.num_rows, batches)


def _from_arrays(pieces: Sequence[Piece], settings: DataSettings, name: str) -> Dataset:
    refuse_other_kind(settings, table=False)
    train = [piece.train for piece in pieces if isinstance(piece.train, Arrays)]
    x, y, owners = _joined(train, [piece.owner for piece in pieces])
    tested = [piece for piece in pieces if isinstance(piece.test, Arrays)]
    if tested:
        tests = [piece.test for piece in tested if isinstance(piece.test, Arrays)]
        x_test, y_test, test_owners = _joined(tests, [piece.owner for piece in tested])
    else:
        share, seed = settings.test_share or Reading.share, settings.split_seed or 0
        held = held_out_rows(y, owners, share, seed, "data")
        x_test, y_test = x[held], y[held]
        test_owners = None if owners is None else owners[held]
        x, y = x[~held], y[~held]
        owners = None if owners is None else owners[~held]
    decoded = decode_arrays(
        x, y, x_test, y_test, "data", None, owners, settings.image_size, test_owners
    )
    return dataset_of(decoded, name, settings.mean, settings.std)


def _joined(
    parts: Sequence[Arrays], owners: Sequence[str | None]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.str_] | None]:
    """All records together, and whose each is."""
    shapes = {part.x.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise RequestError(
            f"data: clients have records of shapes {sorted(shapes)}; give all the same"
        )
    x = np.concatenate([part.x for part in parts])
    y = np.concatenate([part.y for part in parts])
    if owners[0] is None:
        return x, y, None
    names = np.array(owners, dtype=np.str_)
    return x, y, np.repeat(names, [len(part.y) for part in parts])


def _from_tables(pieces: Sequence[Piece], settings: DataSettings, name: str) -> Dataset:
    train: list[Any] = [_owned(piece.train, piece.owner) for piece in pieces]
    test: list[Any] = [_owned(p.test, p.owner) for p in pieces if p.test is not None]
    reading = Reading.of(replace(settings, name=name), None, False)
    reading.say_division("data", test=bool(test), per_owner=train[0].owner is not None)
    decoded = reading.tables(train, test, "data")
    refuse_other_kind(settings, table=bool(decoded.columns))
    default: tuple[()] | None = () if decoded.columns or reading.vocabulary else None
    column = settings.client_column
    return Dataset(
        name,
        decoded.train,
        decoded.test,
        decoded.class_names,
        choose_scaling(settings.mean, settings.std, default, decoded.channels, "data"),
        decoded.fingerprint(),
        decoded.group_names,
        decoded.columns,
        f"value of '{column}'" if column else "client of the list",
    )


def _owned(table: Any, owner: str | None) -> Any:
    return replace(table, owner=owner)
