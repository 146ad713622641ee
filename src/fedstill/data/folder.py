"""Image folders: one folder per class, with or without a test split, at one site or at several.

``train/<class>/*`` and ``test/<class>/*`` is taken as it is. A flat ``<class>/*`` has no test
split, so every fifth file of each class, in sorted order, becomes a test record: the same
files on every machine, whatever the seed. Site folders, ``<site>/<class>/*`` or
``<site>/train/<class>/*``, are such folders side by side, and every site is an owner.
"""

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from fedstill.data.decoded import Decoded
from fedstill.data.images import ImageForm, decode_images
from fedstill.errors import RequestError
from fedstill.records import Split

SUFFIXES = frozenset(
    (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
)


class Listed(NamedTuple):
    """An image file, its class, and the number of its site."""

    file: Path
    label: int
    site: int = 0


@dataclass(frozen=True)
class ImageFolder:
    """The files of both splits. ``sites`` are the owners' names, if there are several."""

    class_names: tuple[str, ...]
    train: tuple[Listed, ...]
    test: tuple[Listed, ...]
    sites: tuple[str, ...] = ()

    @property
    def files(self) -> list[Path]:
        """Every file that decoding reads."""
        return [listed.file for listed in (*self.train, *self.test)]

    def decode(self, image_size: int | None, channels: int | None = None) -> Decoded:
        """All images in memory, in the form of the training images."""
        files = [listed.file for listed in self.train]
        form = ImageForm.of_most(files, image_size, str(files[0]), channels)
        owned = bool(self.sites)
        return Decoded(
            _decode_split(self.train, form, owned),
            _decode_split(self.test, form, owned),
            self.class_names,
            self.sites,
        )


def is_image_folder(folder: Path) -> bool:
    """Whether there are images below, one folder per class."""
    roots = [folder / "train"] if (folder / "train").is_dir() else [folder]
    return any(image_files(kind) for root in roots for kind in class_folders(root))


def is_site_folder(folder: Path) -> bool:
    """Whether every folder here is a site with one folder of images per class."""
    sites = class_folders(folder)
    if not sites or (folder / "train").is_dir():
        return False
    nested = any(is_image_folder(site) for site in sites)
    return nested and not any(image_files(site) for site in sites)


def read_image_folder(folder: Path) -> ImageFolder:
    """List the files of an image folder (nothing is decoded yet)."""
    sites = class_folders(folder) if is_site_folder(folder) else [folder]
    kinds = {kind.name for site in sites for kind in class_folders(_training_root(site))}
    names = tuple(_in_order(kinds))
    train: list[Listed] = []
    test: list[Listed] = []
    for number, site in enumerate(sites):
        kept, held_out = _files_of(site, names)
        if len(sites) > 1 and not any(kept):
            raise RequestError(f"{site}: this site has no training images; remove it")
        train += _listed(kept, number)
        test += _listed(held_out, number)
    if not all((site / "train").is_dir() for site in sites):
        of_each = "class of every site" if len(sites) > 1 else "class"
        warnings.warn(
            f"{folder}: no test split; every fifth image of every {of_each} is held out for the "
            "test (train/<class>/* and test/<class>/* are a split of your own)",
            stacklevel=2,
        )
    owners = tuple(site.name for site in sites) if sites != [folder] else ()
    return _checked(folder, names, tuple(train), tuple(test), owners)


def _training_root(site: Path) -> Path:
    return site / "train" if (site / "train").is_dir() else site


def _files_of(site: Path, names: Sequence[str]) -> tuple[list[list[Path]], list[list[Path]]]:
    """The files of each class in both splits of one folder."""
    train_root, test_root = site / "train", site / "test"
    if not train_root.is_dir():
        files = [image_files(site / name) for name in names]
        return [[f for i, f in enumerate(k) if i % 5 != 4] for k in files], [k[4::5] for k in files]
    if not test_root.is_dir():
        raise RequestError(f"{site}: has train/ but no test/; add test/<class>/*")
    unknown = [kind.name for kind in class_folders(test_root) if kind.name not in names]
    if unknown:
        raise RequestError(
            f"{test_root / unknown[0]}: this class is not among the {len(names)} classes of "
            f"{train_root}; the splits must have the same classes"
        )
    return (
        [image_files(train_root / name) for name in names],
        [image_files(test_root / name) for name in names],
    )


def _checked(
    folder: Path,
    names: tuple[str, ...],
    train: tuple[Listed, ...],
    test: tuple[Listed, ...],
    sites: tuple[str, ...],
) -> ImageFolder:
    for what, name in (*(("class", n) for n in names), *(("site", n) for n in sites)):
        if not name.isprintable() or any("\ud800" <= c <= "\udfff" for c in name):
            raise RequestError(f"{folder}: {what} {name!r} has no readable name; rename its folder")
    held = {listed.label for listed in train}
    for label, name in enumerate(names):
        if label not in held:
            raise RequestError(f"{folder}: class '{name}' has no training images; remove it")
    if not test:
        raise RequestError(
            f"{folder}: no test images; add test/<class>/* or at least five images per class"
        )
    return ImageFolder(names, train, test, sites)


def class_folders(root: Path) -> list[Path]:
    """The folders of the classes, in order."""
    folders = {p.name: p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")}
    return [folders[name] for name in _in_order(folders)]


def _in_order(names: Collection[str]) -> list[str]:
    if all(name.isdecimal() for name in names):  # class 10 comes after class 9
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def image_files(folder: Path) -> list[Path]:
    """The images of one class, in order."""
    if not folder.is_dir():
        return []
    return sorted(
        p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith(".")
    )


def _listed(files_by_class: Sequence[Sequence[Path]], site: int) -> list[Listed]:
    return [Listed(f, label, site) for label, files in enumerate(files_by_class) for f in files]


def _decode_split(records: tuple[Listed, ...], form: ImageForm, owned: bool) -> Split:
    files = [listed.file for listed in records]
    out = form.empty(len(files))
    decode_images(files, form, out, lambda i: str(files[i]))
    labels = torch.tensor([listed.label for listed in records], dtype=torch.int64)
    sites = torch.tensor([listed.site for listed in records], dtype=torch.int64)
    return Split(torch.from_numpy(out), labels, sites if owned else None)
