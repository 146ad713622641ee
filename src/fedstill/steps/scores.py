"""Evaluation of a model: accuracy, loss, calibration error, per class and per group."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedstill.records import Records, SyntheticSet
from fedstill.types import Params, Task

CALIBRATION_BINS = 15  # Guo et al., "On Calibration of Modern Neural Networks", ICML 2017


@dataclass(frozen=True, eq=False)
class Scores:
    """A model's predictions on some records.

    ``right`` is the share of correct predictions per record: one prediction per record, or one per
    position of a text. ``confidence``, ``labels``, ``predicted`` and ``groups`` are ``None`` if
    records have none: a text has no class, and only some data have groups.
    """

    loss: float
    right: Tensor  # float64 [records]
    classes: int
    confidence: Tensor | None = None
    labels: Tensor | None = None
    groups: Tensor | None = None
    predicted: Tensor | None = None

    @property
    def accuracy(self) -> float:
        """The share of correct predictions."""
        return float(self.right.sum()) / len(self.right)

    @cached_property
    def by_group(self) -> dict[int, float]:
        """Accuracy per group, for groups with records."""
        if self.groups is None:
            return {}
        counts, sums = self.groups.bincount(), self.groups.bincount(self.right)
        return {g: float(sums[g] / counts[g]) for g in counts.nonzero().flatten().tolist()}

    @cached_property
    def calibration_error(self) -> float:
        """Expected calibration error: how far confidence is from accuracy."""
        if self.confidence is None:
            raise ValueError("the records have no class each: no calibration error")
        return calibration_error(self.confidence, self.right > 0)

    @cached_property
    def per_class(self) -> tuple[float | None, ...]:
        """Accuracy per class; ``None`` for a class without records."""
        if self.labels is None:
            raise ValueError("the records have no class each: no accuracy per class")
        return per_class_accuracy(self.right > 0, self.labels, self.classes)

    @cached_property
    def confusion(self) -> Tensor | None:
        """Records by class (rows) and predicted class (columns); ``None`` without classes."""
        if self.labels is None or self.predicted is None:
            return None
        pairs = self.labels * self.classes + self.predicted
        return pairs.bincount(minlength=self.classes**2).view(self.classes, self.classes)


def score(task: Task, params: Params, records: Records) -> Scores:
    """One pass over these records."""
    chunks = (records.take(p) for p in torch.arange(len(records)).split(task.chunk))
    groups = records.split.groups
    return _score(task, params, chunks, None if groups is None else groups[records.index])


@torch.no_grad()
def losses(task: Task, params: Params, records: Records) -> Tensor:
    """The loss of every record."""
    found = []
    for positions in torch.arange(len(records)).split(task.chunk):
        x, y = records.take(positions)
        found.append(task.loss(task.model.inference(params, x)[-1], y).cpu())
    return torch.cat(found)


def score_set(task: Task, params: Params, synthetic: SyntheticSet) -> Scores:
    """One pass over synthetic images; of a soft label the most probable class counts."""
    chunk = task.chunk
    chunks = zip(synthetic.images.split(chunk), synthetic.classes.split(chunk), strict=True)
    return _score(task, params, chunks, None)


@torch.no_grad()
def _score(
    task: Task, params: Params, chunks: Iterable[tuple[Tensor, Tensor]], groups: Tensor | None
) -> Scores:
    right: list[Tensor] = []
    confidences: list[Tensor] = []
    labels: list[Tensor] = []
    predicted: list[Tensor] = []
    totals: list[Tensor] = []
    for x, y in chunks:
        logits = task.model.inference(params, x)[-1]
        chosen = logits.argmax(-1)
        right.append((chosen == y).view(len(y), -1))
        totals.append(task.loss(logits, y).sum())
        if logits.dim() == 2:
            confidences.append(logits.softmax(1).amax(1))
            labels.append(y)
            predicted.append(chosen)
    # Read once, at the end: an accelerator need not wait for every chunk.
    shares = torch.cat(right).cpu().double().mean(1)
    return Scores(
        sum(torch.stack(totals).tolist()) / len(shares),
        shares,
        task.classes,
        torch.cat(confidences).cpu() if confidences else None,
        torch.cat(labels).cpu() if labels else None,
        groups,
        torch.cat(predicted).cpu() if predicted else None,
    )


def calibration_error(confidence: Tensor, right: Tensor, bins: int = CALIBRATION_BINS) -> float:
    """Expected calibration error of predictions with this confidence.

    Records are sorted into bins of equal width by confidence, (0, 1/15], (1/15, 2/15] and so on;
    the error is the mean over the records of |accuracy - mean confidence| of their bin.
    """
    place = (confidence.double() * bins).ceil().long().clamp(1, bins) - 1
    gap = torch.zeros(bins, dtype=torch.float64)
    gap.index_add_(0, place, right.double() - confidence.double())
    return float(gap.abs().sum() / len(right))


def per_class_accuracy(right: Tensor, labels: Tensor, classes: int) -> tuple[float | None, ...]:
    """The share of each class's records that were predicted correctly."""
    held = torch.bincount(labels, minlength=classes).tolist()
    hits = torch.bincount(labels[right], minlength=classes).tolist()
    return tuple(hit / number if number else None for hit, number in zip(hits, held, strict=True))
