"""Records that are already numbers: arrays in memory, or an ``.npz`` file of them."""

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from fedstill.data.dataset import Dataset
from fedstill.data.decoded import Decoded
from fedstill.data.held_out import SHARE, hold_out_evenly, say_held_out
from fedstill.data.images import resize_images
from fedstill.data.labels import (
    check_class_names,
    check_labels,
    check_names,
    match_names,
    number_classes,
    number_groups,
    number_more_groups,
)
from fedstill.data.limits import refuse_expanding
from fedstill.data.scaling import choose_scaling
from fedstill.errors import FedstillError, RequestError
from fedstill.records import Split

ArrayLike = Any  # a NumPy array, a tensor, or nested sequences of numbers
_CHANNELS = (1, 3, 4)
_MOST_NAMED = 20  # arrays of a file, in a message


def arrays(
    x_train: ArrayLike,
    y_train: ArrayLike,
    x_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    *,
    name: str = "arrays",
    class_names: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    clients: ArrayLike | None = None,
) -> Dataset:
    """A data set from arrays or tensors.

    Images are [N, C, H, W], [N, H, W] or (channels 1, 3 or 4 last) [N, H, W, C]; where both
    readings fit, channels come first. Bytes 0..255 stay bytes and are scaled as other images
    are. Floats are used as they are unless ``mean`` and ``std`` are given. Labels are numbers or
    words. ``clients`` names the owner of each training record: each becomes a client. Without a
    test split, a fifth of every class of every owner is held out.
    """
    if (x_test is None) != (y_test is None):
        raise RequestError(f"{name}: give both x_test and y_test, or neither")
    if x_test is None:
        x, y = _array(x_train), _array(y_train)
        _refuse_other_length(y, len(x), name, "train")
        owners = None if clients is None else _owners(clients, len(y), name)
        held = held_out_rows(y, owners, SHARE, 0, name)
        x_train, y_train, x_test, y_test = x[~held], y[~held], x[held], y[held]
        clients = None if owners is None else owners[~held]
    decoded = decode_arrays(x_train, y_train, x_test, y_test, name, class_names, clients)
    return dataset_of(decoded, name, mean, std)


def held_out_rows(
    labels: NDArray[Any], owners: NDArray[Any] | None, share: float, seed: int, place: str
) -> NDArray[np.bool_]:
    """Which records are held out for the test, said aloud."""
    held = hold_out_evenly(labels, owners, share, seed)
    if not held.any():
        raise RequestError(f"{place}: too few records to hold some out; give a test split")
    say_held_out(place, share, owners is not None)
    return held


def dataset_of(
    decoded: Decoded, name: str, mean: Sequence[float] | None, std: Sequence[float] | None
) -> Dataset:
    """The data set of arrays that are checked: bytes are scaled as other images are."""
    raw = decoded.train.inputs.dtype == torch.uint8
    return Dataset(
        name=name,
        train=decoded.train,
        test=decoded.test,
        class_names=decoded.class_names,
        scaling=choose_scaling(mean, std, None if raw else (), decoded.channels, name),
        fingerprint=decoded.fingerprint(),
        group_names=decoded.group_names,
    )


def decode_arrays(
    x_train: ArrayLike,
    y_train: ArrayLike,
    x_test: ArrayLike,
    y_test: ArrayLike,
    place: str,
    class_names: Sequence[str] | None = None,
    clients: ArrayLike | None = None,
    image_size: int | None = None,
    test_clients: ArrayLike | None = None,
) -> Decoded:
    """Arrays checked and converted to the common form; ``place`` names them in messages."""
    inputs = {
        "train": _inputs(x_train, f"{place}, x_train", image_size),
        "test": _inputs(x_test, f"{place}, x_test", image_size),
    }
    if (a := inputs["train"].shape[1:]) != (b := inputs["test"].shape[1:]):
        raise RequestError(f"{place}: x_train has records of shape {a} but x_test of {b}")
    if inputs["train"].dtype != inputs["test"].dtype:
        kinds = inputs["train"].dtype, inputs["test"].dtype
        raise RequestError(f"{place}: x_train holds {kinds[0]} but x_test {kinds[1]}")
    train_labels = _labels(y_train, len(inputs["train"]), place, "train")
    test_labels = _labels(y_test, len(inputs["test"]), place, "test")

    def where(split: str) -> Any:
        return lambda row: f"{place}, y_{split}[{row}]"

    if train_labels.dtype.kind == "U" or test_labels.dtype.kind == "U":
        words = train_labels.astype(np.str_), test_labels.astype(np.str_)
        train_labels, test_labels, found = match_names(*words, where("test"))
        names = check_class_names(found, f"{place}, y_train")
        if class_names and tuple(class_names) != names:
            raise RequestError(f"{place}: class_names are not the words of y_train in order")
    elif class_names:
        names = tuple(class_names)
    else:
        numbered = number_classes(train_labels, where("train"))
        train_labels = numbered.positions(train_labels)
        test_labels = numbered.checked(test_labels, where("test"))
        names = numbered.names
    groups: Tensor | None = None
    test_groups: Tensor | None = None
    group_names: tuple[str, ...] = ()
    if clients is not None:
        groups, group_names = number_groups(_owners(clients, len(train_labels), place))
        if test_clients is not None:
            test_owners = _array(test_clients)
            test_groups, group_names = number_more_groups(test_owners, group_names)
        check_names(group_names, f"{place}, clients")
    return Decoded(
        Split(
            torch.from_numpy(inputs["train"]),
            check_labels(train_labels, len(names), where("train")),
            groups,
        ),
        Split(
            torch.from_numpy(inputs["test"]),
            check_labels(test_labels, len(names), where("test")),
            test_groups,
        ),
        names,
        group_names,
    )


def read_npz(path: Path, client_array: str | None, image_size: int | None) -> Decoded:
    """An ``.npz`` file with x_train, y_train, x_test and y_test. Pickled objects are refused."""
    wanted = ["x_train", "y_train", "x_test", "y_test"]
    if client_array is not None:
        wanted.append(client_array)
    needed = "x_train, y_train, x_test and y_test"
    needed += " and the one data.client_column names" if client_array else ""
    found = _read_arrays(path, wanted, needed)
    owners = found[4] if client_array is not None else None
    x_train, y_train, x_test, y_test = found[:4]
    return decode_arrays(
        x_train, y_train, x_test, y_test, str(path), clients=owners, image_size=image_size
    )


def read_training_arrays(
    path: Path, image_size: int | None
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Inputs and labels of an ``.npz`` file with x_train and y_train."""
    x, y = _read_arrays(path, ["x_train", "y_train"], "x_train and y_train")
    inputs = _inputs(x, f"{path}, x_train", image_size)
    return inputs, _labels(y, len(inputs), str(path), "train")


def read_raw_arrays(path: Path, image_size: int | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """The same with the values as they are: the caller leaves out the records that do not fit."""
    x, y = _read_arrays(path, ["x_train", "y_train"], "x_train and y_train")
    if y.shape != x.shape[:1] or not (x.dtype == np.bool_ or np.issubdtype(x.dtype, np.number)):
        raise RequestError(f"{path}: x_train and y_train are not numbers, one label per record")
    x = _channels_first(x)
    if image_size is not None and x.dtype == np.uint8 and x.ndim == 4:
        x = resize_images(x, image_size)
    return x, y


def _read_arrays(path: Path, wanted: Sequence[str], needed: str) -> list[NDArray[Any]]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            missing = [name for name in wanted if name not in members]
            if missing:
                held = ", ".join(list(members)[:_MOST_NAMED])
                raise RequestError(
                    f"{path}: no array '{missing[0]}' (it has: {held}); needed are {needed}"
                )
            chosen = [members[name] for name in wanted]
            # A member gives no more bytes than it declares, so this bounds what is read.
            declared = sum(info.file_size for info in chosen)
            refuse_expanding(declared, path.stat().st_size, str(path))
            return [_member(archive, info) for info in chosen]
    except FedstillError:
        raise
    except Exception as error:  # zip, zlib and NumPy's headers raise nearly anything on bad bytes
        reason = _reason(path, error)
        raise RequestError(
            f"{path}: not a readable .npz file of number arrays ({reason})"
        ) from error


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """An array, whose header must not promise more than is there: it is allocated first."""
    with archive.open(info) as stream:
        version = npy.read_magic(stream)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read_header(stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    claimed = math.prod(shape) * dtype.itemsize
    if claimed > info.file_size:
        raise ValueError(
            f"{info.filename} claims {claimed:,} bytes and has at most {info.file_size:,}"
        )
    with archive.open(info) as stream:
        array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
        return array


def _reason(path: Path, error: Exception) -> str:
    if not zipfile.is_zipfile(path):
        return "it is a single array, or no archive at all"
    return str(error).split("\n")[0] or type(error).__name__


def _array(values: ArrayLike) -> NDArray[Any]:
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    return np.asarray(values)


def _inputs(values: ArrayLike, place: str, image_size: int | None) -> NDArray[Any]:
    x = _array(values)
    if x.ndim < 2 or x.ndim > 4 or x.size == 0:
        raise RequestError(
            f"{place}: shape {x.shape} cannot be read as records; give [N, C, H, W], [N, H, W], "
            "[N, H, W, C], or [N, features] as floats"
        )
    x = _channels_first(_checked_numbers(x, place))
    if image_size is not None:
        if x.dtype != np.uint8 or x.ndim != 4:
            raise RequestError(f"{place}: data.image_size resizes byte images only")
        x = resize_images(x, image_size)
    return _owned(x, values)


def _channels_first(x: NDArray[Any]) -> NDArray[Any]:
    if x.ndim == 3:
        return x[:, None]
    last = x.ndim == 4 and x.shape[-1] in _CHANNELS and x.shape[1] not in _CHANNELS
    return x.transpose(0, 3, 1, 2) if last else x


def _owned(x: NDArray[Any], values: ArrayLike) -> NDArray[Any]:
    """Contiguous, and not the caller's memory: later changes there must not reach a run."""
    x = np.ascontiguousarray(x)
    return x.copy() if np.shares_memory(x, _array(values)) else x


def _checked_numbers(x: NDArray[Any], place: str) -> NDArray[Any]:
    """uint8 or float32, as the values allow."""
    if x.dtype == np.uint8:
        return x
    if np.issubdtype(x.dtype, np.floating):
        x = x.astype(np.float32)
        bad = np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(axis=1))
        if len(bad):
            raise RequestError(f"{place}[{bad[0]}]: holds NaN or infinity; fix or remove it")
        return x
    if np.issubdtype(x.dtype, np.integer):
        if x.ndim == 2:  # features
            return x.astype(np.float32)
        if x.min() >= 0 and x.max() <= 255:
            return x.astype(np.uint8)
        raise RequestError(
            f"{place}: whole numbers from {x.min()} to {x.max()} are no image bytes (0..255); "
            "convert them to floats"
        )
    raise RequestError(f"{place}: holds {x.dtype}; give uint8 or floats")


def _owners(clients: ArrayLike, records: int, place: str) -> NDArray[Any]:
    owners = _array(clients)
    if owners.shape != (records,):
        raise RequestError(
            f"{place}: clients has shape {owners.shape} but there are {records} training records; "
            "give each one an owner"
        )
    return owners.astype(np.str_) if owners.dtype == object else owners


def _refuse_other_length(y: NDArray[Any], records: int, place: str, split: str) -> None:
    if y.shape != (records,):
        raise RequestError(
            f"{place}: x_{split} holds {records} records but y_{split} has shape {y.shape}; "
            "give one label per record"
        )


def _labels(values: ArrayLike, records: int, place: str, split: str) -> NDArray[Any]:
    """Labels as whole numbers, or as words."""
    y = _array(values)
    _refuse_other_length(y, records, place, split)
    if y.dtype == object and all(isinstance(word, str) for word in y.tolist()):
        y = y.astype(np.str_)
    if y.dtype.kind == "U":
        return y
    if np.issubdtype(y.dtype, np.floating) and bool(np.all(np.abs(y) < 2**53)):
        whole = y.astype(np.int64)
        y = whole if bool(np.all(whole == y)) else y
    if not (np.issubdtype(y.dtype, np.integer) or y.dtype == np.bool_):
        raise RequestError(
            f"{place}, y_{split}: holds {y.dtype}; give class numbers 0, 1, ... or words"
        )
    return y.astype(np.int64)
