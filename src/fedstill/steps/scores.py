"""What a classifier is worth on some records: accuracy, loss, calibration, and class by class."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedstill.data.dataset import Records
from fedstill.types import Params, Task

CALIBRATION_BINS = 15  # Guo et al., "On Calibration of Modern Neural Networks", ICML 2017


@dataclass(frozen=True)
class Scores:
    """Scores of one network. ``per_class`` has ``None`` where no record is of the class."""

    accuracy: float
    loss: float
    calibration_error: float
    per_class: tuple[float | None, ...]


@torch.no_grad()
def score(task: Task, params: Params, records: Records) -> Scores:
    """All scores of these weights, in one pass over the records."""
    confidences: list[Tensor] = []
    hits: list[Tensor] = []
    labels: list[Tensor] = []
    loss = 0.0
    for positions in torch.arange(len(records)).split(task.model.chunk):
        x, y = records.take(positions)
        logits = task.model.apply(params, x)
        confidence, predicted = logits.softmax(1).max(1)
        loss += float(task.loss(logits, y).sum())
        confidences.append(confidence.cpu())
        hits.append((predicted == y).cpu())
        labels.append(y.cpu())
    right, label = torch.cat(hits), torch.cat(labels)
    return Scores(
        accuracy=float(right.double().mean()),
        loss=loss / len(records),
        calibration_error=calibration_error(torch.cat(confidences), right),
        per_class=per_class_accuracy(right, label, task.classes),
    )


def calibration_error(confidence: Tensor, right: Tensor, bins: int = CALIBRATION_BINS) -> float:
    """Expected calibration error: how far confidence is from accuracy.

    Records are sorted into bins of equal width by confidence, (0, 1/15], (1/15, 2/15] and so on;
    the answer is the mean over the records of |accuracy - mean confidence| of their bin.
    """
    place = (confidence.double() * bins).ceil().long().clamp(1, bins) - 1
    gap = torch.zeros(bins, dtype=torch.float64)
    gap.index_add_(0, place, right.double() - confidence.double())
    return float(gap.abs().sum() / len(right))


def per_class_accuracy(right: Tensor, labels: Tensor, classes: int) -> tuple[float | None, ...]:
    """The share of each class's records that were recognised."""
    held = torch.bincount(labels, minlength=classes).tolist()
    hits = torch.bincount(labels[right], minlength=classes).tolist()
    return tuple(hit / number if number else None for hit, number in zip(hits, held, strict=True))
