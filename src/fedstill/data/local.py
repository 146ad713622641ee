"""Data in local files: which file or folder a name means, and a refusal where there is none.

PyTorch is not imported here, and no record is read: ``load`` finds data this way, and a wrong name
is refused in the same words before anything is imported.
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fedstill.data.catalogue import SOURCES
from fedstill.data.settings import DataSettings
from fedstill.data.table_files import split_files
from fedstill.errors import RequestError, did_you_mean


def refuse_absent(data: DataSettings) -> None:
    """Refuse data that should be in a local file or folder, and are not."""
    data = with_full_paths(data)
    with suppress(OSError):  # a folder that may not be read: reported when the data are loaded
        if is_local(data):
            find_local(data)


def is_local(data: DataSettings) -> bool:
    """Whether it is one local file or folder: not built in, not on the hub, and not domains from
    several places."""
    source = SOURCES.get(data.name)
    if source is None:
        return not data.name.startswith("hub:")
    return _is_whole(data) if source.parts else source.hub is not None and data.dir is not None


def _is_whole(data: DataSettings) -> bool:
    """Whether ``dir`` holds the data set as one pair of tables, with all its domains."""
    if data.dir is None:
        return False
    return bool(split_files(expanded(data.dir) / data.name, "train"))


def find_local(data: DataSettings) -> Path:
    """The folder or file that the name means; names in ``dir`` come before paths."""
    name = data.name
    if not name.strip():
        raise RequestError(f"data.name is empty{did_you_mean('', SOURCES)}")
    path = expanded(name)
    if data.dir is not None:
        folder = expanded(data.dir)
        inside = folder / name
        if inside.exists():
            return inside
        if name in SOURCES or not path.exists():
            raise RequestError(_absent(name, folder))
    if path.exists():
        return path
    if "/" in name or "\\" in name or name.startswith(("~", ".")) or path.suffix:
        raise RequestError(f"data '{name}': no such file or folder")
    raise RequestError(f"unknown data set '{name}'{did_you_mean(name, SOURCES)}")


def expanded(path: str, key: str = "data") -> Path:
    """The path with its ``~`` replaced by the home folder, refused where nobody has it."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise RequestError(f"{key} '{path}': no such file or folder") from error


def _absent(name: str, folder: Path) -> str:
    if not folder.is_dir():
        return f"data.dir '{folder}': no such folder"
    held = sorted(p.name for p in folder.iterdir() if p.is_dir() and any(split_files(p, "train")))
    return (
        f"data set '{name}': neither {folder / name / 'train.parquet'} nor "
        f"{folder / name / 'test.parquet'} exists; {folder} holds: {', '.join(held) or 'none'}"
    )


def with_full_paths(data: DataSettings) -> DataSettings:
    """Paths in full, so that the run can be resumed from any folder."""
    local = data.name.strip() and data.name not in SOURCES and not data.name.startswith("hub:")
    try:
        folder = data.dir and _full(data.dir, "data.dir")
        in_dir = folder is not None and (Path(folder) / data.name).exists()
        name = data.name
        if local and not in_dir and Path(name).exists():
            name = _full(name, "data")
        vocabulary = data.vocabulary and _full_vocabulary(data.vocabulary)
    except (OSError, ValueError) as error:  # too long, a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        raise RequestError(f"data: a name or folder cannot be used as a path: {reason}") from error
    return replace(data, name=name, dir=folder, vocabulary=vocabulary)


def _full(path: str, key: str) -> str:
    return str(expanded(path, key).resolve())


def _full_vocabulary(vocabulary: str) -> str:
    from fedstill.data.vocabulary import CHARACTERS  # here: it imports NumPy

    return vocabulary if vocabulary == CHARACTERS else _full(vocabulary, "data.vocabulary")
