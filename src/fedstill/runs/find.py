"""Where a set or a model comes from: the run that its file lies in, and that run's data."""

from dataclasses import replace
from pathlib import Path

from fedstill.config import spelled_out
from fedstill.config.nested import convert
from fedstill.data import Dataset, DataSettings, load
from fedstill.errors import RequestError
from fedstill.runs.folder import RunFolder
from fedstill.runs.sets import StoredSet


def run_of(path: Path) -> RunFolder | None:
    """The run that this is: its folder, its model file, or a file of its ``synthetic/``."""
    places = [path] if path.is_dir() else list(path.absolute().parents[:2])
    return next((run for run in map(RunFolder, places) if run.holds_run), None)


def data_settings(run: RunFolder | None, data: str | None, data_dir: str | None) -> DataSettings:
    """The data that are asked for, or those of the run where nothing was asked."""
    if data is not None:
        return DataSettings(data, data_dir)
    if run is None:
        raise RequestError("--data: which data to test on? the file lies in no run folder")
    table = spelled_out(run.read_config()).get("data", {})
    settings = convert(table, DataSettings, f"{run.path / 'config.toml'}: data")
    return settings if data_dir is None else replace(settings, dir=data_dir)


def load_data(run: RunFolder | None, data: str | None, data_dir: str | None) -> Dataset:
    """The data set that ``data_settings`` names."""
    return load(data_settings(run, data, data_dir))


def refuse_other_data(path: Path, stored: StoredSet, data: Dataset) -> None:
    """A set can be evaluated only on data of the same shape, classes and scaling."""
    metadata = stored.metadata
    pairs = (
        ("inputs of shape", _size(metadata.shape), _size(data.shape)),
        ("classes", str(len(metadata.class_names)), str(data.classes)),
        ("mean", str(list(metadata.mean)), str(list(data.scaling.mean))),
        ("standard deviation", str(list(metadata.std)), str(list(data.scaling.std))),
    )
    for what, found, other in pairs:
        if found != other:
            verb = "is scaled with" if what in ("mean", "standard deviation") else "has"
            raise RequestError(
                f"{path}: the set {verb} {what} {found}, the data '{data.name}' {what} {other}; "
                f"name the data it was made from ('{metadata.data}') by --data"
            )


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
