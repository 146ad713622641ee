"""A defence for servers that train on clients' synthetic sets: outlying sets lose their weight.

Every client's set is compared with the others' (defence/evidence.py), in five ways:

- *direction*: the cosine of its gradient with the others', class by class, at the current weights;
- *loss*: the loss on it of a model trained, from the current weights, on other sets;
- *agreement*: the share of its images whose features are nearest to others' of their class;
- *size* and *roughness* of its pixels: their root mean square, and that of neighbours' differences.

The first three use only classes that others have sent too, so that a client is no outlier just
because nobody else holds its classes. Each other client that has sent one of them is a reference. A
value with n references is weighted by (n - 1) / n: if two clients contradict each other and no
third one has the class, neither is suspected.

A value is scored by its distance from the median, in robust standard deviations (1.4826 times the
median absolute deviation of the better half, and not less than a floor: clients that agree closely
must not make an outlier of one that differs a little). Beyond ``limit`` a client is suspected.
Attackers are references too, so everything is measured again: if any client deviates noticeably,
first with the less deviating half of the clients as references, then with all clients that are not
suspected, until the suspects stay the same. Fewer than half of the clients can lose trust: if more
are suspected, those that deviate most do.
"""

import math
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fedstill.defence.evidence import (
    Directions,
    Evidence,
    Prototypes,
    by_pixels,
    measured,
    trained_on,
)
from fedstill.defence.settings import DefenceSettings
from fedstill.records import SyntheticSet
from fedstill.rng import Rng
from fedstill.types import Params, Task


@dataclass(frozen=True)
class Verdict:
    """The result for one client. A measure without references is left out."""

    trust: float
    reason: str  # empty if the client is not suspected
    deviation: float  # the largest, in robust standard deviations
    measures: dict[str, float]


@dataclass(frozen=True)
class Measure:
    """Which values are outliers: high, low or both, by difference or by ratio."""

    description: str
    floor: float  # the least standard deviation
    high: bool
    low: bool
    ratio: bool = False


Verdicts = dict[int, Verdict]

_MOST_PASSES = 3  # after the first two

MEASURES = {
    "direction": Measure("its gradient points elsewhere, cosine", 0.15, high=False, low=True),
    "loss": Measure(
        "a model trained on other sets has loss", 0.35, high=True, low=False, ratio=True
    ),
    "agreement": Measure(
        "share of its images like others' of their class", 0.12, high=False, low=True
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
    pixels = {c: by_pixels(synthetic.images) for c, synthetic in sorted(sets.items())}
    folds = min(settings.folds, len(sets))

    def train(others: Mapping[int, SyntheticSet], fold: int) -> Params:
        rate = settings.learning_rate
        stream = rng.at("fold", fold)
        return trained_on(task, params, others, stream, steps=settings.steps, learning_rate=rate)

    def judged_by(references: Collection[int]) -> Verdicts:
        evidence = measured(task, params, sets, directions, prototypes, references, folds, train)
        whole = {client: pixels[client] | evidence[client] for client in pixels}
        return _verdicts(whole, references, settings, math.log(task.classes))

    found = judged_by(_trusted(_verdicts(pixels, set(sets), settings, 0.0)))
    if all(verdict.deviation <= settings.limit / 2 for verdict in found.values()):
        return found
    by_deviation = sorted(found, key=lambda client: (found[client].deviation, client))
    found = judged_by(by_deviation[: len(found) // 2 + 1])
    for _ in range(_MOST_PASSES):
        references = _trusted(found)
        found = judged_by(references)
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
    suspects = sorted(
        (c for c in evidence if worst[c][0] > settings.limit), key=lambda c: (-worst[c][0], c)
    )
    distrusted = suspects[: (len(evidence) - 1) // 2]
    verdicts: Verdicts = {}
    for client, values in evidence.items():
        deviation, reason = worst[client]
        trust = max(0.0, 3 - 2 * deviation / settings.limit) if settings.mode == "weigh" else 0.0
        verdicts[client] = Verdict(
            trust if client in distrusted else 1.0,
            reason if client in suspects else "",
            deviation,
            {name: value.value for name, value in values.items()},
        )
    return verdicts


def _deviations(
    name: str, evidence: Mapping[int, Evidence], references: Collection[int], guessing: float
) -> dict[int, tuple[float, str]]:
    """Each client's deviation, in robust standard deviations, and its description."""
    measure = MEASURES[name]
    given = {client: values[name] for client, values in evidence.items() if name in values}
    # A ratio of two losses near zero is meaningless: a tenth of the loss of guessing is added.
    offset = 0.1 * guessing if name == "loss" else 1e-12
    places = {
        client: math.log(found.value + offset) if measure.ratio else found.value
        for client, found in given.items()
    }
    known = [client for client in given if client in references]
    if not known:
        return {}
    centre = statistics.median(places[c] for c in known)
    # If only one side counts as an outlier, attackers do not widen the spread of the other.
    distances = [
        abs(places[c] - centre)
        for c in known
        if (measure.high or places[c] >= centre) and (measure.low or places[c] <= centre)
    ]
    spread = 1.4826 * statistics.median(distances)
    usual = statistics.median(given[c].value for c in known)
    deviations: dict[int, tuple[float, str]] = {}
    for client, found in given.items():
        weight = 1.0 if found.references is None else (found.references - 1) / found.references
        away = (places[client] - centre) * weight / max(spread, measure.floor)
        deviation = max(away if measure.high else 0.0, -away if measure.low else 0.0)
        text = f"{measure.description} {found.value:.3g}, median {usual:.3g}"
        deviations[client] = deviation, text
    return deviations
