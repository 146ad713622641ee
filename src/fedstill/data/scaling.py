"""Which normalisation constants a data set gets."""

import math
from collections.abc import Sequence

from fedstill.errors import RequestError
from fedstill.scaling import Scaling


def choose_scaling(
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    default: Scaling | tuple[()] | None,
    channels: int,
    place: str,
) -> Scaling:
    """The user's constants, else those of the data set, else 0.5 for unknown data.

    Unknown data get 0.5 / 0.5 (bytes land in -1..1) and never constants computed from them:
    a mean over private records is a release of them, made before any budget is counted.
    ``default=()`` means inputs that are used as they are.
    """
    if (mean is None) != (std is None):
        given, missing = ("mean", "std") if std is None else ("std", "mean")
        raise RequestError(f"data.{given} is set but data.{missing} is not; set both or neither")
    if mean is None or std is None:
        if isinstance(default, tuple):
            return Scaling((), ())
        if default is None:
            return Scaling((0.5,) * channels, (0.5,) * channels)
        if len(default.mean) != channels:
            raise RequestError(
                f"{place}: the images have {channels} channels but the known constants of this "
                f"data set are for {len(default.mean)}; set data.mean and data.std"
            )
        return default
    for key, values in (("mean", mean), ("std", std)):
        if len(values) != channels:
            raise RequestError(
                f"data.{key} has {len(values)} numbers but {place} has {channels} channels; "
                "give one per channel"
            )
        if not all(math.isfinite(value) for value in values):
            raise RequestError(f"data.{key} = {list(values)}: must be finite numbers")
    if min(std) <= 0:
        raise RequestError(f"data.std = {list(std)}: every number must be greater than 0")
    return Scaling(tuple(map(float, mean)), tuple(map(float, std)))
