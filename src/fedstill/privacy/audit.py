"""An audit: what an attacker learns from one run, as a lower bound on epsilon.

    1  m canaries; each is put among the records by a fair coin, independently
    2  one run of the method, its own client and server code; the attacker sees every release and
       every image, and knows canaries, method and claim
    3  it scores every canary
    4  how many canaries are guessed right bounds epsilon from below (``audit_bounds.py``)

The canaries are the only records. Two attackers score. ``door`` looks at the releases: canaries are
worst cases for the mechanism there (``canaries.py``). ``message`` searches all images that were
made for each canary's own image, which finds leaks that bypass the door; it has a run of its own,
with fewer canaries.

A bound above the claim refutes it, with the stated confidence. A bound below it proves nothing by
itself. There is no power where even a mechanism without noise could not have been refuted, or where
the bound is below ``POWER_SHARE`` of the claim.
"""

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor

from fedstill.privacy.accounting import Accountant, epsilon_of
from fedstill.privacy.audit_bounds import Claim, Rates, best_guesses
from fedstill.privacy.canaries import (
    Attacker,
    Canaries,
    WatchedDoor,
    blank_record,
    make_canaries,
)
from fedstill.privacy.ledger import Ledger
from fedstill.privacy.mechanism import DoorTerms, PrivateRecords
from fedstill.privacy.randomness import OperatingSystem
from fedstill.records import Split
from fedstill.rng import Rng
from fedstill.types import AnyMethod, ClientContext, Reply, ServerContext, Task
from fedstill.version import VERSION

POWER_SHARE = 0.25  # of the claim: a bound below it says nothing
# The thresholds of the Gaussian test: of the canaries that are out, this share is above. The first
# is close to the best for every claim; the second finds leaks of few records.
_FALSE_POSITIVES = (0.3, 0.01)
# Canaries of a run whose images are searched: there are few images, and the more canaries, the
# smaller the share of them that images can carry.
_MOST_SEARCHED = 400

Verdict = Literal["refuted", "not refuted", "no power"]
Attack = Literal["door", "message"]


@dataclass(frozen=True)
class AuditSettings:
    """How hard the audit tries."""

    canaries: int = 10_000
    confidence: float = 0.95
    seed: int = 0


@dataclass(frozen=True)
class AuditTarget:
    """What is audited: a method on a task, and the terms of its door. ``blank`` is one record of
    zeros, for the shapes. ``accesses`` are per round, as the method declares them."""

    method: AnyMethod
    name: str
    task: Task
    terms: DoorTerms
    blank: Split
    accesses: int
    delta: float
    accountant: Accountant = "pld"

    @property
    def claimed(self) -> float:
        """The epsilon that all rounds of the task together claim."""
        terms, accesses = self.terms, self.task.rounds * self.accesses
        return epsilon_of(accesses, terms.rate, terms.sigma, self.delta, self.accountant)


@dataclass(frozen=True)
class Finding:
    """One attack: its bound on epsilon and the guesses behind it."""

    attacker: Attack
    test: Literal["gaussian", "guesses"]
    bound: float
    guesses: int
    right: int


@dataclass(frozen=True)
class Audit:
    """The result. ``claimed`` is ``None`` for a run without privacy, which claims nothing.

    ``finding`` is the best of ``findings``. ``coverage``: in what share of the releases a canary
    had a coordinate of its own. ``could_refute``: a mechanism without noise would have been
    refuted.
    """

    method: str
    claimed: float | None
    delta: float
    sigma: float | None
    rate: float | None
    rounds: int
    accesses: int
    canaries: int
    coverage: float
    confidence: float
    finding: Finding
    findings: tuple[Finding, ...]
    could_refute: bool

    @property
    def refuted(self) -> bool:
        """Whether the claim was shown to be false."""
        return self.claimed is not None and self.finding.bound > self.claimed

    @property
    def verdict(self) -> Verdict | None:
        """``None`` where nothing is claimed."""
        if self.claimed is None:
            return None
        if self.refuted:
            return "refuted"
        weak = self.finding.bound < POWER_SHARE * self.claimed
        return "no power" if weak or not self.could_refute else "not refuted"


@dataclass(frozen=True)
class AuditReport:
    """An audit of a private form, and the attack on the same without privacy, where there is one.

    ``notes`` say what differs from what was asked for; ``made`` is when a run was audited.
    """

    audit: Audit | None
    without_privacy: Audit | None = None
    notes: tuple[str, ...] = ()
    version: str = VERSION
    made: str = ""

    @property
    def refuted(self) -> bool:
        return self.audit is not None and self.audit.refuted

    @property
    def verdict(self) -> Verdict | None:
        return None if self.audit is None else self.audit.verdict

    @property
    def table(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        found = {k: v for k, v in msgspec.to_builtins(self).items() if v is not None}
        return {**found, "refuted": self.refuted, "verdict": self.verdict}


Door = Callable[..., PrivateRecords]


def audit(target: AuditTarget, settings: AuditSettings, door: Door = PrivateRecords) -> Audit:
    """Audit a method's private form. ``door``: another mechanism, for tests."""
    rng, terms, task = Rng(settings.seed).at("audit"), target.terms, target.task
    seen = _attacked(target, settings.canaries, rng, door)
    if 0 < seen.attacker.room < settings.canaries:
        # No release has coordinates for so many. Fewer that are in every release tell more.
        seen = _attacked(target, seen.attacker.room, rng, door)
    attacker, canaries = seen.attacker, seen.canaries
    searched = seen
    if seen.images is not None and attacker.number > _MOST_SEARCHED:
        searched = _attacked(target, _MOST_SEARCHED, rng, door)
    claim = Claim(seen.accesses, terms.rate, terms.sigma, target.delta)
    level = (1 - settings.confidence) / (2 if searched.images is None else 3)
    thresholds = [attacker.threshold(share, rng) for share in _FALSE_POSITIVES]
    rates = [Rates.at(t, attacker.scores, canaries.included) for t in thresholds]
    findings = [
        Finding("door", "gaussian", claim.bound(rates, level), attacker.number, rates[0].right),
        _guessed("door", attacker.with_counts(), canaries, target.delta, level),
    ]
    if searched.images is not None:
        likeness = _likeness(searched.canaries, searched.images)
        findings.append(_guessed("message", likeness, searched.canaries, target.delta, level))
    return Audit(
        method=target.name,
        claimed=target.claimed,
        delta=target.delta,
        sigma=terms.sigma,
        rate=terms.rate,
        rounds=task.rounds,
        accesses=seen.accesses,
        canaries=attacker.number,
        coverage=attacker.coverage,
        confidence=settings.confidence,
        finding=max(findings, key=lambda f: f.bound),
        findings=tuple(findings),
        could_refute=claim.refuted(terms.sigma, [r.perfect for r in rates], level),
    )


def membership(
    method: AnyMethod, name: str, task: Task, blank: Split, settings: AuditSettings
) -> Audit | None:
    """The search for canaries in the images of a run *without* privacy: what "synthetic" alone
    protects. ``None`` if the method makes no images within these rounds."""
    rng = Rng(settings.seed).at("audit")
    number = min(settings.canaries, _MOST_SEARCHED)
    canaries = make_canaries(number, blank, task, torch.arange(task.classes), rng)
    images = _run(method, task, rng, lambda _: {"data": canaries.chosen})
    if images is None:
        return None
    finding = _guessed(
        "message", _likeness(canaries, images), canaries, 0.0, 1 - settings.confidence
    )
    return Audit(
        method=name,
        claimed=None,
        delta=0.0,
        sigma=None,
        rate=None,
        rounds=task.rounds,
        accesses=0,
        canaries=number,
        coverage=1.0,
        confidence=settings.confidence,
        finding=finding,
        findings=(finding,),
        could_refute=False,
    )


def _guessed(
    attacker: Attack, scores: Tensor, canaries: Canaries, delta: float, level: float
) -> Finding:
    best = best_guesses(scores, canaries.included, delta, level)
    return Finding(attacker, "guesses", best.bound, best.number, best.right)


@dataclass(frozen=True)
class _Seen:
    """What one attacked run showed."""

    attacker: Attacker
    canaries: Canaries
    images: Tensor | None
    accesses: int


def _attacked(target: AuditTarget, number: int, rng: Rng, door: Door) -> _Seen:
    """Line 2, and the scores of line 3."""
    terms, task = target.terms, target.task
    canaries = make_canaries(number, target.blank, task, terms.classes, rng)
    attacker, blank = Attacker(terms, number), blank_record(target.blank, task)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger.jsonl", terms.rate, terms.sigma)

        def view(round: int) -> dict[str, Any]:
            # All canaries at once: their vectors take no memory.
            opened = door(canaries.chosen, ledger, OperatingSystem(), terms, round, number)
            return {"private": WatchedDoor(opened, canaries, attacker, blank)}

        images = _run(target.method, task, rng, view)
        return _Seen(attacker, canaries, images, ledger.count)


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


def _likeness(canaries: Canaries, images: Tensor) -> Tensor:
    """Minus the distance of each canary to the nearest image of any class."""
    x, _ = canaries.records.all()
    nearest = torch.full((len(x),), math.inf, device=images.device)
    for part in images.flatten(1).split(256):
        nearest = torch.minimum(nearest, torch.cdist(x.flatten(1), part).min(1).values)
    return -nearest.double().cpu()
