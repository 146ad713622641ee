"""Image folders: one folder per class, with or without a test split.

``train/<class>/*`` and ``test/<class>/*`` is taken as it is. A flat ``<class>/*`` has no test
split, so every fifth file of each class, in sorted order, becomes a test record: the same
files on every machine, whatever the seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedstill.data.decoded import Decoded
from fedstill.data.images import ImageForm, decode_images
from fedstill.errors import RequestError
from fedstill.records import Split

SUFFIXES = frozenset(
    (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
)


@dataclass(frozen=True)
class ImageFolder:
    """The files of both splits, each with its label."""

    class_names: tuple[str, ...]
    train: tuple[tuple[Path, int], ...]
    test: tuple[tuple[Path, int], ...]

    @property
    def files(self) -> list[Path]:
        """Every file that decoding reads."""
        return [path for path, _ in (*self.train, *self.test)]

    def decode(self, image_size: int | None) -> Decoded:
        """All images in memory; the first training image decides their form."""
        first = self.train[0][0]
        form = ImageForm.of_first(first, image_size, str(first))
        return Decoded(
            _decode_split(self.train, form), _decode_split(self.test, form), self.class_names
        )


def is_image_folder(folder: Path) -> bool:
    """Whether there are images below, in either form."""
    roots = [folder / "train"] if (folder / "train").is_dir() else [folder]
    return any(image_files(kind) for root in roots for kind in class_folders(root))


def read_image_folder(folder: Path) -> ImageFolder:
    """List the files of an image folder (nothing is decoded yet)."""
    train_root, test_root = folder / "train", folder / "test"
    if not train_root.is_dir():
        return _read_flat(folder)
    if not test_root.is_dir():
        raise RequestError(f"{folder}: has train/ but no test/; add test/<class>/*")
    kinds = class_folders(train_root)
    names = tuple(kind.name for kind in kinds)
    unknown = [kind.name for kind in class_folders(test_root) if kind.name not in names]
    if unknown:
        raise RequestError(
            f"{test_root / unknown[0]}: this class is not among the {len(names)} classes of "
            f"{train_root}; the splits must have the same classes"
        )
    train = _labelled([image_files(train_root / name) for name in names])
    test = _labelled([image_files(test_root / name) for name in names])
    return _checked(folder, names, train, test)


def _read_flat(folder: Path) -> ImageFolder:
    kinds = class_folders(folder)
    files = [image_files(kind) for kind in kinds]
    train = _labelled([[f for i, f in enumerate(kind) if i % 5 != 4] for kind in files])
    test = _labelled([kind[4::5] for kind in files])
    return _checked(folder, tuple(kind.name for kind in kinds), train, test)


def _checked(
    folder: Path,
    names: tuple[str, ...],
    train: tuple[tuple[Path, int], ...],
    test: tuple[tuple[Path, int], ...],
) -> ImageFolder:
    for name in names:
        if not name.isprintable() or any("\ud800" <= c <= "\udfff" for c in name):
            raise RequestError(f"{folder}: class {name!r} has no readable name; rename its folder")
    held = {label for _, label in train}
    for label, name in enumerate(names):
        if label not in held:
            raise RequestError(f"{folder}: class '{name}' has no training images; remove it")
    if not test:
        raise RequestError(
            f"{folder}: no test images; add test/<class>/* or at least five images per class"
        )
    return ImageFolder(names, train, test)


def class_folders(root: Path) -> list[Path]:
    """The folders of the classes, in order."""
    folders = [p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")]
    if all(p.name.isdecimal() for p in folders):  # class 10 comes after class 9
        return sorted(folders, key=lambda p: (int(p.name), p.name))
    return sorted(folders)


def image_files(folder: Path) -> list[Path]:
    """The images of one class, in order."""
    if not folder.is_dir():
        return []
    return sorted(
        p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith(".")
    )


def _labelled(files_by_class: Sequence[Sequence[Path]]) -> tuple[tuple[Path, int], ...]:
    return tuple((file, label) for label, files in enumerate(files_by_class) for file in files)


def _decode_split(records: tuple[tuple[Path, int], ...], form: ImageForm) -> Split:
    files = [file for file, _ in records]
    out = form.empty(len(files))
    decode_images(files, form, out, lambda i: str(files[i]))
    labels = torch.from_numpy(np.array([label for _, label in records], dtype=np.int64))
    return Split(torch.from_numpy(out), labels)
