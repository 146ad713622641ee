"""``.npz`` files of arrays. Pickled objects are refused, and no header is believed."""

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedstill.data.arrays import channels_first, checked_inputs, checked_labels, decode_arrays
from fedstill.data.decoded import Decoded
from fedstill.data.images import resize_images
from fedstill.data.limits import refuse_expanding
from fedstill.errors import FedstillError, RequestError

_MOST_NAMED = 20  # arrays of a file, in a message


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
    inputs = checked_inputs(x, f"{path}, x_train", image_size)
    return inputs, checked_labels(y, len(inputs), str(path), "train")


def read_raw_arrays(path: Path, image_size: int | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """The same with the values as they are: the caller leaves out the records that do not fit."""
    x, y = _read_arrays(path, ["x_train", "y_train"], "x_train and y_train")
    if y.shape != x.shape[:1] or not (x.dtype == np.bool_ or np.issubdtype(x.dtype, np.number)):
        raise RequestError(f"{path}: x_train and y_train are not numbers, one label per record")
    x = channels_first(x)
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
