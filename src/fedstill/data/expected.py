"""What a request that names neither a partition nor a model gets: it depends on the data.

Known data sets say it in their entry. Of others only names are looked at, of files, folders and
columns, never a record: whatever is wrong with them is reported when they are loaded.
"""

from dataclasses import dataclass
from pathlib import Path

from fedstill.data.catalogue import SOURCES
from fedstill.data.dataset import Dataset
from fedstill.data.folder import is_site_folder
from fedstill.data.settings import DataSettings
from fedstill.data.table_files import IMAGE_COLUMNS, column_names, find_tables
from fedstill.errors import FedstillError

NATURAL = "natural"
TABLE_MODEL = "mlp"
TEXT_MODEL = "gru"
PLAIN_TEXT = "input.txt"  # a text data set as one file, in place of tables


@dataclass(frozen=True)
class Expected:
    """Defaults that follow from the data; ``None``: the usual ones."""

    partition: str | None = None
    model: str | None = None


def expected_of(data: Dataset) -> Expected:
    """The defaults for a data set in memory: owners become clients."""
    owned = data.train.groups is not None
    return Expected(NATURAL if owned else None, TABLE_MODEL if data.table else None)


def expected_from(settings: DataSettings) -> Expected:
    """The defaults for data that are not loaded yet."""
    source = SOURCES.get(settings.name)
    owned = NATURAL if settings.client_column is not None else None
    if source is not None:
        return Expected(source.partition or owned, source.model)
    if settings.text_column is not None:
        return Expected(NATURAL, TEXT_MODEL)
    try:
        path = _path(settings)
        if path is None:
            return Expected(owned)
        if (files := find_tables(path)) is None:
            text = path.suffix == ".txt" or (path / PLAIN_TEXT).is_file()
            sites = path.is_dir() and is_site_folder(path)
            return Expected(owned or (NATURAL if sites else None), TEXT_MODEL if text else None)
        owned = owned or (NATURAL if files.per_owner else None)
        images = settings.image_column or set(IMAGE_COLUMNS) & set(column_names(files.train[0]))
        return Expected(owned, None if images else TABLE_MODEL)
    except (FedstillError, OSError, ValueError, RuntimeError):
        return Expected(owned)


def _path(settings: DataSettings) -> Path | None:
    if settings.name.startswith("hub:"):
        return None
    path = Path(settings.name).expanduser()
    if settings.dir is not None:
        inside = Path(settings.dir).expanduser() / settings.name
        path = inside if inside.exists() else path
    return path if path.exists() else None
