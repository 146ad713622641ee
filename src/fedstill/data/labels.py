"""Class labels and owners' names, checked: a wrong label must not reach a loss function."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstill.errors import RequestError, is_printable

Where = Callable[[int], str]  # names record i of a split in a message, e.g. "train.parquet, row 3"

# Without class names the largest label decides how many classes there are. A stray identifier
# in the label column must not become a network with a billion outputs.
MOST_CLASSES = 100_000


def check_class_names(names: Sequence[str], place: str) -> tuple[str, ...]:
    """Names of classes: readable, and not more than a network can have outputs."""
    if len(names) > MOST_CLASSES:
        raise RequestError(
            f"{place}: {len(names):,} classes, at most {MOST_CLASSES:,}; "
            "name another column in data.label_column"
        )
    return check_names(names, place)


def check_names(names: Sequence[str], place: str) -> tuple[str, ...]:
    """Names of classes or owners, refused where they could not be shown."""
    for name in names:
        if not is_printable(name):
            raise RequestError(f"{place}: {name!r} is not a readable name; rename it")
    return tuple(names)


def check_labels(labels: NDArray[np.int64], classes: int, where: Where) -> Tensor:
    """The labels as a tensor, all of them in 0..classes-1."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        row = int(wrong[0])
        raise RequestError(
            f"{where(row)}: label {labels[row]} is out of range for {classes} classes "
            f"(0..{classes - 1}); fix the label, or name another column in data.label_column"
        )
    return torch.from_numpy(np.ascontiguousarray(labels))


@dataclass(frozen=True)
class Numbered:
    """Classes of data that name them by numbers: ``numbers`` are sorted."""

    numbers: NDArray[np.int64]

    @classmethod
    def of(cls, names: Sequence[str]) -> "Numbered | None":
        """The classes of these names, if ``number_classes`` made them from numbers."""
        if not all(name.isascii() and name.isdecimal() and len(name) < 7 for name in names):
            return None
        numbers = np.array([int(name) for name in names])
        return cls(numbers) if np.all(np.diff(numbers) > 0) else None

    @property
    def names(self) -> tuple[str, ...]:
        """The numbers as names."""
        return tuple(map(str, self.numbers.tolist()))

    def positions(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """The class of each label; -1 for a label that is none of the numbers."""
        places = np.searchsorted(self.numbers, labels).clip(max=len(self.numbers) - 1)
        return np.where(self.numbers[places] == labels, places, -1)

    def checked(self, labels: NDArray[np.int64], where: Where) -> NDArray[np.int64]:
        """The same; a label that is none of the numbers is refused."""
        found = self.positions(labels)
        unknown = np.flatnonzero(found < 0)
        if len(unknown):
            row, first, last = int(unknown[0]), self.numbers[0], self.numbers[-1]
            raise RequestError(
                f"{where(row)}: label {labels[row]} is out of range for {len(self.numbers)} "
                f"classes ({first}..{last}); fix the label, or name another column in "
                "data.label_column"
            )
        return found


def number_classes(train_labels: NDArray[np.int64], where: Where) -> Numbered:
    """The classes of training labels without names.

    Where they begin with 0, all numbers up to the largest are classes, so that a class that is
    missing by chance keeps its number. Otherwise (1 to 10, say) only the numbers that occur.
    """
    smallest, largest = int(train_labels.min()), int(train_labels.max())
    if smallest < 0:
        row = int(train_labels.argmin())
        raise RequestError(
            f"{where(row)}: label {smallest} is out of range: class numbers are 0 or more; fix the "
            "label, or name another column in data.label_column"
        )
    if largest >= MOST_CLASSES:
        row = int(train_labels.argmax())
        raise RequestError(
            f"{where(row)}: label {largest} is too large for a class number; "
            "name the column of class numbers in data.label_column"
        )
    return Numbered(np.unique(train_labels) if smallest else np.arange(largest + 1))


def match_names(
    train: NDArray[np.str_], test: NDArray[np.str_], where_in_test: Where
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
    """Labels that are words: classes are the training split's words in sorted order."""
    names, train_labels = np.unique(train, return_inverse=True)
    unknown = np.flatnonzero(~np.isin(test, names))
    if len(unknown):
        row = int(unknown[0])
        raise RequestError(
            f"{where_in_test(row)}: class '{test[row]}' does not occur in the training split "
            f"({len(names)} classes); the splits must have the same classes"
        )
    test_labels = np.searchsorted(names, test)
    class_names = tuple(str(name) for name in names)
    return train_labels.astype(np.int64), test_labels.astype(np.int64), class_names


def number_groups(owners: NDArray[np.generic]) -> tuple[Tensor, tuple[str, ...]]:
    """Owners' names or numbers as indices into their sorted names."""
    names, index = np.unique(owners, return_inverse=True)
    return torch.from_numpy(index.astype(np.int64)), tuple(str(name) for name in names)


def number_more_groups(
    owners: NDArray[np.generic], known: tuple[str, ...]
) -> tuple[Tensor, tuple[str, ...]]:
    """Owners as indices into ``known`` names, with those that are new in the end."""
    index, found = number_groups(owners)
    names = tuple(dict.fromkeys((*known, *found)))
    place = {name: number for number, name in enumerate(names)}
    return torch.tensor([place[name] for name in found])[index], names
