"""A defence for servers that train on clients' synthetic sets: each set is judged by what it does.

Every client's set is compared with the others' (defence/evidence.py), in five ways:

- *direction*: the cosine of its gradient with the others', class by class, at the current weights;
- *loss*: the loss on it of a model that was trained, from the current weights, on other sets;
- *agreement*: the share of its images that look, to the network, most like others' of their class;
- *size* and *roughness* of its pixels: their root mean square, and that of neighbours' differences.

Like is compared with like: the first three look only at classes that others have sent too, so that
a client with classes of its own is no outlier for having them. Each other client that has sent one
of them is a reference. A value with n references counts (n - 1) / n: where two clients contradict
each other and no third one has the class, neither is suspected.

A value counts by its distance from the median, in robust standard deviations (1.4826 times the
median absolute deviation of the better half, and not less than a floor: clients that agree closely
must not make an outlier of one that differs a little). Beyond ``limit`` a client is suspect.
Attackers are references too, so everything is measured again: if anybody was odd at all, by the
less odd half of the clients alone, then by all whom these did not suspect, until the suspects stay
the same. Fewer than half of the clients can lose trust: if more look odd, the oddest of them do.
"""

import math
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from fedstill.defence.evidence import (
    Directions,
    Evidence,
    Prototypes,
    by_pixels,
    measured,
    trained_on,
)
from fedstill.records import SyntheticSet
from fedstill.rng import Rng
from fedstill.types import Params, Task


@dataclass(frozen=True)
class DefenceSettings:
    """The ``[defence]`` section. ``weigh`` lowers the weight of suspects, ``drop`` removes them."""

    mode: Literal["off", "weigh", "drop"] = "off"
    limit: Annotated[float, Meta(gt=0)] = 3.0  # robust standard deviations
    folds: Annotated[int, Meta(ge=2)] = 5  # groups of clients, each judged by a model of the rest
    steps: Annotated[int, Meta(ge=1)] = 40  # of training such a model
    learning_rate: Annotated[float, Meta(gt=0)] = 0.05


@dataclass(frozen=True)
class Verdict:
    """What was found about one client. A measure that had nothing to compare with is left out."""

    trust: float
    reason: str  # empty where nothing is odd
    deviation: float  # the largest, in robust standard deviations
    measures: dict[str, float]


@dataclass(frozen=True)
class Measure:
    """When a value is odd: too high, too low or either, by its difference or by its ratio."""

    words: str
    floor: float  # the least standard deviation
    high: bool
    low: bool
    ratio: bool = False


Verdicts = dict[int, Verdict]

_MOST_PASSES = 3  # after the first two

MEASURES = {
    "direction": Measure("its gradient points elsewhere, cosine", 0.15, high=False, low=True),
    "loss": Measure("a model of the other sets has loss", 0.35, high=True, low=False, ratio=True),
    "agreement": Measure(
        "images that look like others' of their class", 0.12, high=False, low=True
    ),
    "size": Measure("its pixels have size", 0.25, high=True, low=True, ratio=True),
    "roughness": Measure("its pixels have roughness", 0.1, high=True, low=True, ratio=True),
}


def judge(
    task: Task,
    params: Params,
    sets: Mapping[int, SyntheticSet],
    settings: DefenceSettings,
    rng: Rng,
) -> Verdicts:
    """A verdict on every client's set, at the current weights ``params``."""
    directions, prototypes = Directions.at(task, params, sets), Prototypes.at(task, params, sets)
    pixels = {client: by_pixels(own.images) for client, own in sorted(sets.items())}
    folds = min(settings.folds, len(sets))

    def train(others: Mapping[int, SyntheticSet], fold: int) -> Params:
        rate = settings.learning_rate
        stream = rng.at("fold", fold)
        return trained_on(task, params, others, stream, steps=settings.steps, learning_rate=rate)

    def seen_by(references: Collection[int]) -> Verdicts:
        evidence = measured(task, params, sets, directions, prototypes, references, folds, train)
        whole = {client: pixels[client] | evidence[client] for client in pixels}
        return _verdicts(whole, references, settings, math.log(task.classes))

    found = seen_by(_trusted(_verdicts(pixels, set(sets), settings, 0.0)))
    if all(verdict.deviation <= settings.limit / 2 for verdict in found.values()):
        return found
    by_oddness = sorted(found, key=lambda client: (found[client].deviation, client))
    found = seen_by(by_oddness[: len(found) // 2 + 1])
    for _ in range(_MOST_PASSES):
        references = _trusted(found)
        found = seen_by(references)
        if _trusted(found) == references:
            break
    return found


def _trusted(verdicts: Verdicts) -> set[int]:
    return {client for client, verdict in verdicts.items() if verdict.trust == 1}


def _verdicts(
    evidence: Mapping[int, Evidence],
    references: Collection[int],
    settings: DefenceSettings,
    guessing: float,
) -> Verdicts:
    worst = dict.fromkeys(evidence, (0.0, ""))
    for name in MEASURES:
        for client, found in _deviations(name, evidence, references, guessing).items():
            worst[client] = max(worst[client], found)
    odd = sorted(
        (c for c in evidence if worst[c][0] > settings.limit), key=lambda c: (-worst[c][0], c)
    )
    distrusted = odd[: (len(evidence) - 1) // 2]
    verdicts: Verdicts = {}
    for client, own in evidence.items():
        deviation, words = worst[client]
        faith = max(0.0, 3 - 2 * deviation / settings.limit) if settings.mode == "weigh" else 0.0
        verdicts[client] = Verdict(
            faith if client in distrusted else 1.0,
            words if client in odd else "",
            deviation,
            {name: value.value for name, value in own.items()},
        )
    return verdicts


def _deviations(
    name: str, evidence: Mapping[int, Evidence], references: Collection[int], guessing: float
) -> dict[int, tuple[float, str]]:
    """How odd each client's value is, in robust standard deviations, and in words."""
    measure = MEASURES[name]
    given = {client: own[name] for client, own in evidence.items() if name in own}
    # A ratio of two losses near zero says nothing: a tenth of the loss of guessing is added.
    ground = 0.1 * guessing if name == "loss" else 1e-12
    places = {
        client: math.log(own.value + ground) if measure.ratio else own.value
        for client, own in given.items()
    }
    known = [client for client in given if client in references]
    if not known:
        return {}
    centre = statistics.median(places[c] for c in known)
    # Where one side alone is odd the other one is sound: its spread is not widened by attackers.
    sound = [
        abs(places[c] - centre)
        for c in known
        if (measure.high or places[c] >= centre) and (measure.low or places[c] <= centre)
    ]
    spread = 1.4826 * statistics.median(sound)
    usual = statistics.median(given[c].value for c in known)
    found: dict[int, tuple[float, str]] = {}
    for client, own in given.items():
        belief = 1.0 if own.references is None else (own.references - 1) / own.references
        away = (places[client] - centre) * belief / max(spread, measure.floor)
        deviation = max(away if measure.high else 0.0, -away if measure.low else 0.0)
        found[client] = deviation, f"{measure.words} {own.value:.3g}, usual is {usual:.3g}"
    return found
