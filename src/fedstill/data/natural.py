"""Data whose records have natural owners: writers, speakers, domains."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstill.data.decoded import Decoded
from fedstill.errors import RequestError, did_you_mean
from fedstill.records import Split

_HELD_OUT = 5


def every_fifth(owners: NDArray[np.generic]) -> NDArray[np.bool_]:
    """A test split for known data without one: every fifth record of each owner, in the data's
    order.

    The same records whatever the seed; an owner with fewer than five keeps them all.
    """
    _, numbers = np.unique(owners, return_inverse=True)
    order = np.argsort(numbers, kind="stable")
    counts = np.bincount(numbers)
    starts = np.cumsum(counts) - counts
    ranks = np.empty(len(owners), dtype=np.int64)
    ranks[order] = np.arange(len(owners)) - np.repeat(starts, counts)
    flags: NDArray[np.bool_] = ranks % _HELD_OUT == _HELD_OUT - 1
    return flags


def keep_domains(decoded: Decoded, domains: Sequence[str], place: str) -> Decoded:
    """Only the records of these owners, renumbered in the order of their names."""
    names = decoded.group_names
    check_domains(domains, names, place)
    chosen = [number for number, name in enumerate(names) if name in domains]
    number_of = torch.full((len(names),), -1, dtype=torch.int64)
    number_of[chosen] = torch.arange(len(chosen))

    def kept(split: Split) -> Split:
        if split.groups is None:  # a test split that does not say whose its records are
            return split
        numbers = number_of[split.groups]
        few = _rows(split, numbers >= 0)
        return Split(few.inputs, few.labels, numbers[numbers >= 0])

    few = Decoded(
        kept(decoded.train),
        kept(decoded.test),
        decoded.class_names,
        tuple(names[number] for number in chosen),
    )
    if not len(few.train) or not len(few.test):
        raise RequestError(f"{place}: data.domains = {list(domains)} leaves no records in a split")
    return few


def check_domains(domains: Sequence[str], names: Sequence[str], place: str) -> None:
    """Refuse a domain that is not there."""
    if not domains:
        raise RequestError("data.domains is empty; name some or leave it out for all")
    for domain in domains:
        if domain not in names:
            raise RequestError(f"data.domains: no '{domain}' in {place}{_offer(domain, names)}")


def _offer(domain: str, names: Sequence[str]) -> str:
    if not names:
        return "; its records have no owners: name their column in data.client_column"
    return did_you_mean(domain, names)


def join(parts: Sequence[Decoded], names: Sequence[str]) -> Decoded:
    """Data sets of the same classes as the domains of one."""

    def joined(splits: Sequence[Split]) -> Split:
        sizes = torch.tensor([len(split) for split in splits])
        return Split(
            torch.cat([split.inputs for split in splits]),
            torch.cat([split.labels for split in splits]),
            torch.arange(len(splits)).repeat_interleave(sizes),
        )

    classes = parts[0].class_names
    for part, name in zip(parts, names, strict=True):
        if len(part.class_names) != len(classes):
            raise RequestError(
                f"domain '{name}' has {len(part.class_names)} classes, '{names[0]}' has "
                f"{len(classes)}; all domains must have the same classes"
            )
    return Decoded(
        joined([part.train for part in parts]),
        joined([part.test for part in parts]),
        classes,
        tuple(names),
    )


def _rows(split: Split, chosen: Tensor) -> Split:
    groups = None if split.groups is None else split.groups[chosen]
    return Split(split.inputs[chosen], split.labels[chosen], groups)
