"""Loading by name, folder or file."""

import json
from functools import partial
from pathlib import Path

import torch

from fedstill.data import digit_domains, digits
from fedstill.data.cache import cached
from fedstill.data.catalogue import SOURCES, Part, Source
from fedstill.data.dataset import Dataset
from fedstill.data.decoded import Decoded
from fedstill.data.expected import PLAIN_TEXT
from fedstill.data.folder import is_image_folder, is_site_folder, read_image_folder
from fedstill.data.images import resize_images
from fedstill.data.local import expanded, find_local, is_local
from fedstill.data.natural import check_domains, join, keep_domains
from fedstill.data.npz import read_npz
from fedstill.data.reading import Reading, refuse_other_kind
from fedstill.data.scaling import choose_scaling
from fedstill.data.settings import DataSettings
from fedstill.data.table_files import SUFFIXES as TABLES
from fedstill.data.table_files import find_tables, split_files
from fedstill.errors import RequestError
from fedstill.records import Split
from fedstill.scaling import Scaling

__all__ = ["load"]


def load(settings: DataSettings, *, cache_dir: Path | None = None) -> Dataset:
    """The data set that the settings name, decoded (or mapped from the cache) and checked."""
    try:
        return _load(settings, cache_dir)
    except OSError as error:  # a dangling link, a folder that may not be read, a name too long
        where = f": {error.filename}" if error.filename else ""
        raise RequestError(f"data '{settings.name}': {error.strerror or error}{where}") from error


def _load(settings: DataSettings, cache_dir: Path | None) -> Dataset:
    source = SOURCES.get(settings.name)
    text = source.text if source else _is_plain_text(settings)
    reading = Reading.of(settings, source, text)
    name, decoded, fingerprint = _find(settings, source, reading, cache_dir)
    refuse_other_kind(settings, table=bool(decoded.columns))
    if settings.domains is not None:
        decoded = keep_domains(decoded, settings.domains, name)
        fingerprint = decoded.fingerprint()
    default: Scaling | tuple[()] | None = source.scaling if source else None
    if decoded.train.inputs.dtype != torch.uint8:  # tokens and floats are used as they are
        default = ()
    return Dataset(
        name=name,
        train=decoded.train,
        test=decoded.test,
        class_names=decoded.class_names,
        scaling=choose_scaling(settings.mean, settings.std, default, decoded.channels, name),
        fingerprint=fingerprint,
        group_names=decoded.group_names,
        columns=decoded.columns,
        owned_by=_owned_by(settings, decoded),
    )


def _owned_by(settings: DataSettings, decoded: Decoded) -> str:
    """What makes a client, in a sentence that begins with "one client per"."""
    if decoded.train.groups is None or settings.name in SOURCES:
        return ""
    if settings.client_column is not None:
        return f"value of '{settings.client_column}'"
    return "site" if decoded.train.inputs.dtype == torch.uint8 else "file"


def _find(
    settings: DataSettings, source: Source | None, reading: Reading, cache_dir: Path | None
) -> tuple[str, Decoded, str]:
    """The data set's name, its records and their fingerprint, wherever they come from."""
    name, local = settings.name, is_local(settings)
    if source is not None and source.built_in:
        return name, *_built_in(name, settings)
    if source is not None and source.parts and not local:
        return name, *_from_parts(source, settings, reading, cache_dir)
    if name.startswith("hub:"):
        hub_id = name.removeprefix("hub:")
        short = hub_id.rpartition("/")[2]
        return hub_id, *_from_hub(hub_id, hub_id, short, reading, cache_dir)
    if source is not None and source.hub is not None and not local:
        return name, *_from_hub(source.hub, name, name, reading, cache_dir)
    path = find_local(settings)
    full = path.resolve()  # "." has no name
    if source is None:
        name = full.stem if full.is_file() else full.name
    return name, *_from_path(path, name, settings, reading, cache_dir)


def _built_in(name: str, settings: DataSettings) -> tuple[Decoded, str]:
    _refuse_columns(settings, f"the built-in {name} have")
    if name == "digit-domains":
        decoded = digit_domains.load_digit_domains()
    else:
        decoded = Decoded(*digits.load_digits(), digits.CLASS_NAMES)
    if (size := settings.image_size) is not None:
        train, test = (
            Split(
                torch.from_numpy(resize_images(split.inputs.numpy(), size)),
                split.labels,
                split.groups,
            )
            for split in (decoded.train, decoded.test)
        )
        decoded = Decoded(train, test, decoded.class_names, decoded.group_names)
    return decoded, decoded.fingerprint()


def _is_plain_text(settings: DataSettings) -> bool:
    """Whether the name means a plain text, or a folder with one."""
    path = expanded(settings.dir or ".") / expanded(settings.name)
    return path.suffix == ".txt" or (path / PLAIN_TEXT).is_file()


def _from_parts(
    source: Source, settings: DataSettings, reading: Reading, cache_dir: Path | None
) -> tuple[Decoded, str]:
    """A data set whose domains lie in several places: each in ``dir``, or else on the hub."""
    names = [part.domain for part in source.parts]
    wanted = names if settings.domains is None else list(settings.domains)
    check_domains(wanted, names, source.name)
    _refuse_columns(settings, f"{source.name} has one folder per domain and")
    chosen = [part for part in source.parts if part.domain in wanted]
    parts = [_part(source, part, settings, reading.of_part(), cache_dir)[0] for part in chosen]
    decoded = join(parts, [part.domain for part in chosen])
    return decoded, decoded.fingerprint()


def _part(
    source: Source,
    part: Part,
    settings: DataSettings,
    reading: Reading,
    cache_dir: Path | None,
) -> tuple[Decoded, str]:
    name, folder = f"{source.name}-{part.domain}", f"{source.name}/{part.domain}"
    if settings.dir is not None:
        path = Path(settings.dir).expanduser() / folder
        if path.exists():
            return _from_path(path, name, settings, reading, cache_dir)
    if part.hub is not None:
        return _from_hub(part.hub, name, folder, reading, cache_dir, part.subset)
    others = [p.domain for p in source.parts if p is not part]
    raise RequestError(
        f"data set '{source.name}': its domain '{part.domain}' is not on the hub; give --data-dir "
        f"DIR with DIR/{folder}/train.parquet and test.parquet, or leave it out: "
        f"--set 'data.domains={json.dumps(others)}'"
    )


def _from_path(
    path: Path, name: str, settings: DataSettings, reading: Reading, cache_dir: Path | None
) -> tuple[Decoded, str]:
    size = reading.image_size
    plain = path if path.is_file() else path / PLAIN_TEXT
    if reading.vocabulary and plain.is_file() and not split_files(path, "train"):
        _refuse_columns(settings, f"{plain} is a plain text and has")
        decoded = reading.plays(plain)  # fast to read: it needs no cache
        return decoded, decoded.fingerprint()
    if path.is_file() and path.suffix.lower() not in TABLES:
        if path.suffix != ".npz":
            raise RequestError(
                f"{path}: not a .csv, .tsv, .parquet, .npz or .txt file; other data come as a "
                "folder with one folder of images per class"
            )
        decoded = read_npz(path, settings.client_column, size)
        return decoded, decoded.fingerprint()
    files = find_tables(path)
    if files is not None:
        if reading.needs_test and not files.test:
            raise RequestError(f"{path}: {path / 'test.parquet'} not found")
        reading.say_division(str(path), test=bool(files.test), per_owner=files.per_owner)
        key = {**reading.key, "per_owner": files.per_owner}

        def decode() -> Decoded:
            return reading.tables(*files.tables(), str(path))

        # Tables of known data sets hold the images themselves.
        named = [] if settings.name in SOURCES else reading.named_images(files)
        return cached(name, [*files.all, *named], key, decode, cache_dir)
    if not split_files(path, "test") and (is_image_folder(path) or is_site_folder(path)):
        _refuse_columns(settings, f"{path} is an image folder and has")
        listing = read_image_folder(path)
        key = {"image_size": size, "channels": reading.channels, "folder": True}
        decode_images = partial(listing.decode, size, reading.channels)
        return cached(name, listing.files, key, decode_images, cache_dir)
    if reading.vocabulary is not None:
        raise RequestError(f"{path}: neither {PLAIN_TEXT} nor train.parquet is there")
    raise RequestError(
        f"{path}: train.parquet (or .csv) not found, nor one table per client, nor one folder of "
        "images per class"
    )


def _from_hub(
    hub_id: str,
    name: str,
    folder: str,
    reading: Reading,
    cache_dir: Path | None,
    subset: str | None = None,
) -> tuple[Decoded, str]:
    from fedstill.data import hub

    train, test, files = hub.open_hub(hub_id, name, folder, subset, reading.needs_test)
    reading.say_division(hub_id, test=bool(test))

    def decode() -> Decoded:
        return reading.tables(train, test, hub_id)

    if not files:  # held in memory only: nothing to name a cache file by
        decoded = decode()
        return decoded, decoded.fingerprint()
    key = {**reading.key, "hub": hub_id}
    return cached(name.replace("/", "-"), files, key, decode, cache_dir)


def _refuse_columns(settings: DataSettings, what: str) -> None:
    for column in ("image_column", "label_column", "client_column", "text_column", "split_column"):
        if (value := getattr(settings, column)) is not None:
            raise RequestError(f"data.{column} = '{value}': {what} no columns; leave it out")
