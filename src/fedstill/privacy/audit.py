"""An empirical lower bound on epsilon: what an attacker learns from one run.

Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023:

    1  m canaries; each is put among the records by a fair coin, independently
    2  one run of the method; the attacker sees what is released, and knows canaries and method
    3  it scores every canary, and guesses "in" for the highest and "out" for the lowest scores
    4  many right guesses contradict a small epsilon: under (epsilon, delta)-DP each of r guesses is
       right with probability at most e^epsilon / (1 + e^epsilon), up to a term in delta
    5  the bound: the largest epsilon that the number of right guesses refutes with confidence

The canaries are the only records, and the attacker sees every release of the mechanism, as the
guarantee assumes. Two attackers score. ``releases`` solves for the canaries' shares in all noisy
sums by least squares. ``message`` searches the sent images for each canary, which detects leaks
that bypass the mechanism. Each attacker and each number of guesses counts as one test: the
confidence holds for the best of them.
"""

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedstill.models import ConvNet
from fedstill.privacy.accounting import epsilon_of, sigma_for
from fedstill.privacy.guards import private_form_of
from fedstill.privacy.ledger import Ledger
from fedstill.privacy.mechanism import DoorTerms, PrivateRecords
from fedstill.privacy.randomness import OperatingSystem
from fedstill.private import ClassSums, PerRecord
from fedstill.records import Records, Scaling, Split
from fedstill.rng import Rng
from fedstill.types import AnyMethod, ClientContext, Params, Reply, ServerContext, Task

_SHAPE, _CLASSES = (1, 8, 8), 10
_SHARES = (1.0, 0.5, 0.25)  # of the canaries that are guessed
_SCALING = Scaling((0.5,), (0.5,))


@dataclass(frozen=True)
class AuditSettings:
    """One audit: ``epsilon`` is the claim; sigma follows from it."""

    epsilon: float = 1.0
    delta: float = 1e-5
    canaries: int = 400
    rounds: int = 1
    rate: float = 1.0
    clip: float = 1.0
    confidence: float = 0.95
    seed: int = 0


@dataclass(frozen=True)
class Finding:
    """The best attack: its bound on epsilon and the guesses behind it."""

    attacker: str
    bound: float
    guesses: int
    right: int


@dataclass(frozen=True)
class Audit:
    """The result. ``claimed`` is ``None`` for a run without privacy, which claims nothing."""

    method: str
    claimed: float | None
    delta: float
    sigma: float | None
    accesses: int
    canaries: int
    confidence: float
    finding: Finding

    @property
    def refuted(self) -> bool:
        """Whether the claim was shown to be false."""
        return self.claimed is not None and self.finding.bound > self.claimed


Door = Callable[..., PrivateRecords]


def audit(
    method: AnyMethod, name: str, settings: AuditSettings, door: Door = PrivateRecords
) -> Audit:
    """Audit a method's private form. ``door``: another mechanism, for tests."""
    task = _task(settings.rounds)
    form = private_form_of(method, name, settings.rate)
    accesses = settings.rounds * form.accesses
    sigma = sigma_for(settings.epsilon, accesses, settings.rate, settings.delta)
    claimed = epsilon_of(accesses, settings.rate, sigma, settings.delta)
    rng = Rng(settings.seed).at("audit")
    canaries, included = _canaries(settings.canaries, rng)
    attacker = _Regression(len(included))
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger.jsonl", settings.rate, sigma)

        terms = DoorTerms(
            settings.rate, sigma, settings.clip, settings.canaries // 2, torch.arange(_CLASSES)
        )
        records = _only(canaries, included)

        def private(round: int) -> dict[str, Any]:
            watched = door(records, ledger, OperatingSystem(), terms, round, task.model.chunk)
            return {"private": _Watched(watched, canaries, attacker)}

        images = _run(method, task, rng, private)
        accesses = ledger.count
    scores = {"releases": attacker.scores()}
    if images is not None:
        scores["message"] = _likeness(canaries, images)
    finding = best_finding(scores, included, settings.delta, settings.confidence)
    return Audit(
        method=name,
        claimed=claimed,
        delta=settings.delta,
        sigma=sigma,
        accesses=accesses,
        canaries=settings.canaries,
        confidence=settings.confidence,
        finding=finding,
    )


def membership(method: AnyMethod, name: str, settings: AuditSettings) -> Audit | None:
    """The same attack on the images of a run *without* privacy: what "synthetic" alone protects.

    ``None`` if the method makes no images within these rounds.
    """
    rng = Rng(settings.seed).at("audit")
    canaries, included = _canaries(settings.canaries, rng)
    records = _only(canaries, included)
    images = _run(method, _task(settings.rounds), rng, lambda _: {"data": records})
    if images is None:
        return None
    scores = {"message": _likeness(canaries, images)}
    finding = best_finding(scores, included, 0.0, settings.confidence)
    return Audit(
        method=name,
        claimed=None,
        delta=0.0,
        sigma=None,
        accesses=0,
        canaries=settings.canaries,
        confidence=settings.confidence,
        finding=finding,
    )


def epsilon_bound(canaries: int, guesses: int, right: int, delta: float, level: float) -> float:
    """The largest epsilon that this many right guesses refute at this level (bisection)."""

    def refuted(epsilon: float) -> bool:
        return chance(canaries, guesses, right, epsilon, delta) < level

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high) and high < 64:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def chance(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The largest probability of ``right`` right guesses under (epsilon, delta)-DP (Theorem 5.2).

    Right guesses are dominated by Binomial(r, e^eps / (1 + e^eps)); delta adds at most
    2 m delta max_i P[v > Binomial >= v - i] / i.
    """
    p = 1 / (1 + math.exp(-epsilon))
    mass = [
        math.exp(
            math.lgamma(guesses + 1)
            - math.lgamma(k + 1)
            - math.lgamma(guesses - k + 1)
            + k * math.log(p)
            + (guesses - k) * math.log1p(-p)
        )
        for k in range(guesses + 1)
    ]
    tail, near, worst = sum(mass[right:]), 0.0, 0.0
    for i in range(1, right + 1):
        near += mass[right - i]
        worst = max(worst, near / i)
    return min(1.0, tail + 2 * canaries * delta * worst)


def best_finding(
    scores: dict[str, Tensor], included: Tensor, delta: float, confidence: float
) -> Finding:
    """Lines 3 to 5 for every attacker and number of guesses; the level is shared among them."""
    level = (1 - confidence) / (len(scores) * len(_SHARES))
    findings = []
    for attacker, score in scores.items():
        order = score.argsort()
        for share in _SHARES:
            half = max(1, int(len(order) * share) // 2)
            right = int(included[order[-half:]].sum()) + int((~included[order[:half]]).sum())
            bound = epsilon_bound(len(order), 2 * half, right, delta, level)
            findings.append(Finding(attacker, bound, 2 * half, right))
    return max(findings, key=lambda f: f.bound)


class _Regression:
    """Least squares: release = sum_i share_i vector_i + noise, over all releases together."""

    def __init__(self, canaries: int) -> None:
        self._products = torch.zeros(canaries, canaries, dtype=torch.float64)
        self._overlap = torch.zeros(canaries, dtype=torch.float64)

    def add(self, vectors: Tensor, release: Tensor, slots: Tensor | None) -> None:
        """Vectors [canaries, size]; release [size], or [classes, size] with each canary's slot."""
        rows = vectors.double()
        products = rows @ rows.T
        if slots is None:
            overlap = rows @ release.double()
        else:
            products = products * (slots[:, None] == slots)
            overlap = (rows * release.double()[slots]).sum(1)
        self._products += products
        self._overlap += overlap

    def scores(self) -> Tensor:
        ridge = self._products.diagonal().mean().clamp(min=1e-12) * 1e-3
        system = self._products + ridge * torch.eye(len(self._overlap), dtype=torch.float64)
        solution: Tensor = torch.linalg.solve(system, self._overlap)
        return solution


class _Watched:
    """Passes every call on to the door, and shows its releases to the attacker."""

    def __init__(self, door: PrivateRecords, canaries: Records, attacker: _Regression) -> None:
        self._door, self._canaries, self._attacker = door, canaries, attacker

    @property
    def rate(self) -> float:
        return self._door.rate

    @property
    def clip(self) -> float:
        return self._door.clip

    @property
    def class_clip(self) -> float:
        return self._door.class_clip

    @property
    def size(self) -> int:
        return self._door.size

    @property
    def classes(self) -> Tensor:
        return self._door.classes

    @property
    def expected_batch(self) -> float:
        return self._door.expected_batch

    def noisy_sum(self, per_record: PerRecord, *, clip: float | None = None) -> Params:
        release = self._door.noisy_sum(per_record, clip=clip)
        vectors = self._vectors(per_record, self._door.clip if clip is None else clip)
        self._attacker.add(vectors, torch.cat([v.flatten() for v in release.values()]), None)
        return release

    def noisy_mean(self, per_record: PerRecord, *, clip: float | None = None) -> Params:
        total = self.noisy_sum(per_record, clip=clip)
        return {k: v / self._door.expected_batch for k, v in total.items()}

    def noisy_class_sums(self, per_record: PerRecord) -> ClassSums:
        release = self._door.noisy_class_sums(per_record)
        vectors = self._vectors(per_record, self._door.class_clip)
        flat = torch.cat([v.flatten(1) for v in release.sums.values()], 1)
        self._attacker.add(vectors, flat, self._canaries.labels)
        return release

    def _vectors(self, per_record: PerRecord, clip: float) -> Tensor:
        """The clipped vector of each canary, which the attacker can compute itself."""
        rows = []
        for part in self._canaries.index.split(64):
            vectors = per_record(replace(self._canaries, index=part))
            dense = vectors if isinstance(vectors, dict) else vectors.dense()
            flat = torch.cat([v.flatten(1) for v in dense.values()], 1)
            rows.append(flat * (clip / flat.norm(dim=1).clamp(min=clip))[:, None])
        return torch.cat(rows)


def _task(rounds: int) -> Task:
    model = ConvNet(_SHAPE, _CLASSES, width=16)
    return Task(model, _SHAPE, _CLASSES, 1, rounds, _SCALING)


def _canaries(number: int, rng: Rng) -> tuple[Records, Tensor]:
    """Noise images with random labels, and which of them are put among the records (line 1)."""
    draw = rng.at("canaries").torch()
    pixels = torch.randint(0, 256, (number, *_SHAPE), generator=draw, dtype=torch.uint8)
    labels = torch.randint(0, _CLASSES, (number,), generator=draw)
    included = torch.rand(number, generator=rng.at("coins").torch()) < 0.5
    return Records(Split(pixels, labels), torch.arange(number), _SCALING), included


def _only(canaries: Records, included: Tensor) -> Records:
    return replace(canaries, index=canaries.index[included])


def _run(
    method: AnyMethod, task: Task, rng: Rng, view: Callable[[int], dict[str, Any]]
) -> Tensor | None:
    """One client's rounds; all images that client or server made in them, if any."""
    state = method.init(ServerContext(task, 0, rng.at("init")))
    client_state = method.init_client(task)
    made: list[Tensor] = []
    for number in range(1, task.rounds + 1):
        server = ServerContext(task, number, rng.at("server", number))
        down = method.broadcast(server, state)
        context = ClientContext(task, number, 0, rng.at("client", number), **view(number))
        up, client_state = method.client(context, down, client_state)
        replies = [Reply(0, up)]
        state = method.server(server, state, replies)
        made += [synthetic.images for synthetic in method.synthetic(state, replies).values()]
    return torch.cat(made) if made else None


def _likeness(canaries: Records, images: Tensor) -> Tensor:
    """Minus the distance of each canary to the nearest image of any class."""
    x, _ = canaries.all()
    distances = torch.cdist(x.flatten(1), images.flatten(1))
    nearest: Tensor = -distances.min(1).values
    return nearest.double()
