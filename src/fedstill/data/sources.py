"""Where data come from: the table of known names, and loading by name, folder or file."""

from dataclasses import dataclass
from pathlib import Path

import torch

from fedstill.data import digits
from fedstill.data.arrays import read_npz
from fedstill.data.cache import cached
from fedstill.data.dataset import Dataset, Scaling, Split
from fedstill.data.decoded import Decoded
from fedstill.data.folder import is_image_folder, read_image_folder
from fedstill.data.images import resize_images
from fedstill.data.scaling import choose_scaling
from fedstill.errors import RequestError, did_you_mean


@dataclass(frozen=True)
class Source:
    """A data set known by name. Its constants are public; they are never recomputed."""

    name: str
    description: str
    hub: str | None
    scaling: Scaling


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "digits",
            "1,797 handwritten digits of 8x8 pixels, built in",
            None,
            digits.SCALING,
        ),
        Source(
            "mnist",
            "70,000 handwritten digits of 28x28 pixels",
            "ylecun/mnist",
            Scaling((0.1307,), (0.3081,)),
        ),
        Source(
            "fashion-mnist",
            "70,000 pictures of clothes, 10 kinds, 28x28 pixels",
            "zalando-datasets/fashion_mnist",
            Scaling((0.2860,), (0.3530,)),
        ),
        Source(
            "cifar10",
            "60,000 colour photographs, 10 classes, 32x32 pixels",
            "uoft-cs/cifar10",
            Scaling((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        ),
        Source(
            "cifar100",
            "60,000 colour photographs, 100 classes, 32x32 pixels",
            "uoft-cs/cifar100",
            Scaling((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        ),
    )
}


@dataclass(frozen=True)
class DataSettings:
    """What to load and how to read it: the ``[data]`` section of a configuration.

    ``name`` is a known name, ``hub:OWNER/NAME``, or the path of a folder or ``.npz`` file.
    ``image_size`` resizes every image to that square; without it all must have one size.
    """

    name: str = "digits"
    dir: str | None = None
    image_column: str | None = None
    label_column: str | None = None
    client_column: str | None = None
    image_size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


def load(settings: DataSettings, *, cache_dir: Path | None = None) -> Dataset:
    """The data set that the settings name, decoded (or mapped from the cache) and checked."""
    try:
        return _load(settings, cache_dir)
    except OSError as error:  # a dangling link, a folder that may not be read, a name too long
        where = f": {error.filename}" if error.filename else ""
        raise RequestError(f"data '{settings.name}': {error.strerror or error}{where}") from error


def _load(settings: DataSettings, cache_dir: Path | None) -> Dataset:
    if not settings.name.strip():
        raise RequestError(f"data.name is empty{did_you_mean('', SOURCES)}")
    if settings.image_size is not None and settings.image_size < 1:
        raise RequestError(f"data.image_size = {settings.image_size}: must be 1 or more")
    source = SOURCES.get(settings.name)
    default = source.scaling if source else None
    if settings.name == "digits":
        name, (decoded, fingerprint) = "digits", _digits(settings)
    elif settings.name.startswith("hub:"):
        name = settings.name.removeprefix("hub:")
        decoded, fingerprint = _from_hub(name, name, settings, cache_dir)
    elif source is not None and source.hub is not None and settings.dir is None:
        name = settings.name
        decoded, fingerprint = _from_hub(source.hub, name, settings, cache_dir)
    else:
        path = _find_local(settings)
        full = path.resolve()  # "." has no name of its own
        name = settings.name if source else full.stem if full.is_file() else full.name
        decoded, fingerprint = _from_path(path, name, settings, cache_dir)
    if default is None and decoded.train.inputs.dtype != torch.uint8:
        scaling = choose_scaling(settings.mean, settings.std, (), decoded.channels, name)
    else:
        scaling = choose_scaling(settings.mean, settings.std, default, decoded.channels, name)
    return Dataset(
        name=name,
        train=decoded.train,
        test=decoded.test,
        class_names=decoded.class_names,
        scaling=scaling,
        fingerprint=fingerprint,
        group_names=decoded.group_names,
    )


def _digits(settings: DataSettings) -> tuple[Decoded, str]:
    _refuse_columns(settings, "the built-in digits have")
    train, test = digits.load_digits()
    if (size := settings.image_size) is not None:
        train, test = (
            Split(torch.from_numpy(resize_images(split.inputs.numpy(), size)), split.labels)
            for split in (train, test)
        )
    decoded = Decoded(train, test, digits.CLASS_NAMES)
    return decoded, decoded.fingerprint()


def _find_local(settings: DataSettings) -> Path:
    """The folder or file that the name means; names in ``dir`` come before paths."""
    name = settings.name
    path = Path(name).expanduser()
    if settings.dir is not None:
        folder = Path(settings.dir).expanduser()
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


def _absent(name: str, folder: Path) -> str:
    if not folder.is_dir():
        return f"data.dir '{folder}': no such folder"
    held = sorted(p.name for p in folder.iterdir() if p.is_dir() and any(parquet_files(p, "train")))
    return (
        f"data set '{name}': neither {folder / name / 'train.parquet'} nor "
        f"{folder / name / 'test.parquet'} exists; {folder} holds: {', '.join(held) or 'none'}"
    )


def parquet_files(folder: Path, split: str) -> list[Path]:
    """The file or the shards of a split, there or below ``data/`` as in a copy of a hub page."""
    for root in (folder, folder / "data"):
        if (whole := root / f"{split}.parquet").is_file():
            return [whole]
        if shards := sorted(root.glob(f"{split}-*.parquet")):
            return shards
    return []


def _from_path(
    path: Path, name: str, settings: DataSettings, cache_dir: Path | None
) -> tuple[Decoded, str]:
    size = settings.image_size
    if path.is_file():
        if path.suffix != ".npz":
            raise RequestError(
                f"{path}: not an .npz file; other data come as a folder with train.parquet and "
                "test.parquet, or with a folder of images a class"
            )
        decoded = read_npz(path, settings.client_column, size)
        return decoded, decoded.fingerprint()
    train, test = parquet_files(path, "train"), parquet_files(path, "test")
    if train and test:
        columns = (settings.image_column, settings.label_column, settings.client_column)

        def decode() -> Decoded:
            from fedstill.data import tables  # here: pyarrow is slow to import for a cache hit

            return tables.decode_tables(
                [tables.parquet_table(file) for file in train],
                [tables.parquet_table(file) for file in test],
                tables.Columns(*columns),
                size,
            )

        key = {"columns": columns, "image_size": size}
        return cached(name, [*train, *test], key, decode, cache_dir)
    if not train and not test and is_image_folder(path):
        _refuse_columns(settings, f"{path} is an image folder and has")
        listing = read_image_folder(path)
        key = {"image_size": size, "folder": True}
        return cached(name, listing.files, key, lambda: listing.decode(size), cache_dir)
    missing = [str(path / f"{s}.parquet") for s, f in (("train", train), ("test", test)) if not f]
    raise RequestError(f"{path}: {' and '.join(missing)} not found, nor a folder of images a class")


def _from_hub(
    hub_id: str, name: str, settings: DataSettings, cache_dir: Path | None
) -> tuple[Decoded, str]:
    from fedstill.data import hub, tables

    train, test, files = hub.open_hub(hub_id, name)
    columns = (settings.image_column, settings.label_column, settings.client_column)

    def decode() -> Decoded:
        return tables.decode_tables(train, test, tables.Columns(*columns), settings.image_size)

    if not files:  # held in memory only: nothing to name a cache file by
        decoded = decode()
        return decoded, decoded.fingerprint()
    key = {"hub": hub_id, "columns": columns, "image_size": settings.image_size}
    return cached(name.replace("/", "-"), files, key, decode, cache_dir)


def _refuse_columns(settings: DataSettings, what: str) -> None:
    for column in ("image_column", "label_column", "client_column"):
        if (value := getattr(settings, column)) is not None:
            raise RequestError(f"data.{column} = '{value}': {what} no columns; leave it out")
