"""Measurements of clients' synthetic sets, which are compared with each other.

A *reference* is another client that sent images of the same class. Only classes with references
are compared, each weighted by its number of references; pixels need none.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstill.records import SyntheticSet, union
from fedstill.rng import Rng
from fedstill.steps.aggregate import median
from fedstill.steps.fit import fit
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.steps.training import Training
from fedstill.types import Params, Task

_WORST_LOSS = 1e6  # of a set whose loss overflows


@dataclass(frozen=True)
class Value:
    """A measured value, and the number of its references; ``None``: it needs none."""

    value: float
    references: int | None = None


Evidence = dict[str, Value]  # of one client, by the measure's name


@dataclass(frozen=True)
class Directions:
    """Agreement of gradients: for each class its holders and the cosines of their gradients.

    Only the cosines [holders, holders] are kept: they suffice to compare one gradient with the mean
    of any others, each normalised to length 1.
    """

    by_class: Mapping[int, tuple[list[int], Tensor]]

    @staticmethod
    def at(task: Task, params: Params, sets: Mapping[int, SyntheticSet]) -> "Directions":
        """The gradients of all sets, per class, at these weights."""
        weights = tracked(params)
        by_class: dict[int, tuple[list[int], Tensor]] = {}
        labels = {client: synthetic.classes for client, synthetic in sorted(sets.items())}
        for label in torch.cat(list(labels.values())).unique().tolist():
            holders = [c for c, classes in labels.items() if bool((classes == label).any())]
            rows: list[Tensor] = []
            for client in holders:
                rows_of_class = labels[client] == label
                synthetic = sets[client]
                x, y = synthetic.images[rows_of_class], synthetic.labels[rows_of_class]
                gradient, _ = batch_gradient(task, weights, x, y)
                # An attacker's pixels may be huge: a gradient that overflows has no direction.
                flat = torch.cat([g.flatten() for g in gradient]).nan_to_num(0.0, 0.0, 0.0).double()
                rows.append(flat / torch.linalg.vector_norm(flat).clamp(min=1e-30))
            units = torch.stack(rows)
            by_class[label] = holders, (units @ units.T).cpu()
        return Directions(by_class)

    def of(self, client: int, references: Collection[int]) -> Evidence:
        """Cosine of the client's gradient with the references' mean, over their common classes."""
        total, weight = 0.0, 0
        all_references: set[int] = set()
        for holders, cosines in self.by_class.values():
            others = [i for i, c in enumerate(holders) if c in references and c != client]
            if client not in holders or not others:
                continue
            along = float(cosines[holders.index(client), others].sum())
            length = math.sqrt(max(float(cosines[others][:, others].sum()), 1e-30))
            total += len(others) * along / length
            weight += len(others)
            all_references.update(holders[i] for i in others)
        return {"direction": Value(total / weight, len(all_references))} if weight else {}


@dataclass(frozen=True)
class Prototypes:
    """Features of each client's images, before the network's last layer, grouped by class.

    A class's prototype is the coordinate-wise median of its holders' mean features: a minority that
    sends other images under its label does not move it far.
    """

    features: Mapping[int, Tensor]  # of every image, by client
    classes: Mapping[int, Tensor]

    @staticmethod
    @torch.no_grad()
    def at(task: Task, params: Params, sets: Mapping[int, SyntheticSet]) -> "Prototypes":
        """The features of all sets at these weights."""
        features = {
            client: torch.cat(
                [
                    task.model.features(params, x)[-2].flatten(1).nan_to_num(0.0, 0.0, 0.0)
                    for x in synthetic.images.split(task.chunk)
                ]
            )
            for client, synthetic in sets.items()
        }
        return Prototypes(features, {client: s.classes for client, s in sets.items()})

    def of(self, client: int, references: Collection[int]) -> Evidence:
        """The share of the client's images whose nearest prototype is that of their class."""
        means: dict[int, list[Params]] = {}
        holders: dict[int, list[int]] = {}
        for other in sorted(set(references) - {client}):
            for label in self.classes[other].unique().tolist():
                mean = self.features[other][self.classes[other] == label].mean(0)
                means.setdefault(label, []).append({"mean": mean})
                holders.setdefault(label, []).append(other)
        classes = self.classes[client]
        shared = [label for label in classes.unique().tolist() if label in means]
        if not shared:
            return {}
        labels = torch.tensor(sorted(means), device=classes.device)
        prototypes = torch.stack([median(means[label])["mean"] for label in sorted(means)])
        nearest = labels[torch.cdist(self.features[client], prototypes).argmin(1)]
        right = (nearest == classes).float()
        total = sum(len(holders[c]) * float(right[classes == c].mean()) for c in shared)
        weight = sum(len(holders[c]) for c in shared)
        all_references = set().union(*(holders[c] for c in shared))
        return {"agreement": Value(total / weight, len(all_references))}


def trained_on(
    task: Task,
    start: Params,
    sets: Mapping[int, SyntheticSet],
    rng: Rng,
    *,
    steps: int,
    learning_rate: float,
) -> Params:
    """A model trained on these sets: some steps from ``start``, each class weighted equally."""
    together = union(sets)
    classes = together.classes
    counts = torch.bincount(classes, minlength=task.classes)
    share = len(classes) / int((counts > 0).sum()) / counts[classes]
    return fit(
        task,
        start,
        together.images,
        together.labels,
        rng,
        Training(learning_rate, momentum=0.9, batch_size=256),
        iterations=steps,
        weights=share,
    )


@torch.no_grad()
def by_model(
    task: Task, model: Params, synthetic: SyntheticSet, references: Mapping[int, Collection[int]]
) -> Evidence:
    """Loss of a model on a set, weighted by each class's ``references``."""
    all_references = set().union(*references.values())
    if not all_references:
        return {}
    classes, chunks = synthetic.classes, synthetic.images.split(task.chunk)
    logits = torch.cat([task.model.apply(model, x) for x in chunks])
    losses = task.loss(logits, synthetic.labels).nan_to_num(_WORST_LOSS).clamp(max=_WORST_LOSS)
    total = sum(len(r) * float(losses[classes == c].mean()) for c, r in references.items())
    weight = sum(len(r) for r in references.values())
    return {"loss": Value(total / weight, len(all_references))}


def by_pixels(images: Tensor) -> Evidence:
    """Root mean square of the pixels, and of neighbours' differences relative to it."""
    size = _rms(images)
    across = [images.diff(dim=d) for d in range(2, images.dim()) if images.shape[d] > 1]
    rough = math.sqrt(sum(_rms(d) ** 2 for d in across) / max(1, len(across)))
    return {"size": Value(size), "roughness": Value(rough / max(size, 1e-12))}


def measured(
    task: Task,
    params: Params,
    sets: Mapping[int, SyntheticSet],
    directions: Directions,
    prototypes: Prototypes,
    references: Collection[int],
    folds: int,
    train: Callable[[Mapping[int, SyntheticSet], int], Params],
) -> dict[int, Evidence]:
    """Direction, loss and agreement of every client, measured against these references.

    Clients are judged in ``folds`` groups, each by a model that has seen none of its sets.
    """
    held = {client: set(synthetic.classes.tolist()) for client, synthetic in sets.items()}
    clients = sorted(sets)
    evidence: dict[int, Evidence] = {}
    for fold in range(folds):
        judged = clients[fold::folds]
        others = {c: sets[c] for c in clients if c in references and c not in judged}
        model = train(others, fold) if others else params
        for client in judged:
            by_class = {c: [other for other in others if c in held[other]] for c in held[client]}
            evidence[client] = (
                directions.of(client, references)
                | by_model(task, model, sets[client], by_class)
                | prototypes.of(client, references)
            )
    return evidence


def _rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())
