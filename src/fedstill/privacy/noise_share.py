"""How much of a released statistic is noise, from public numbers alone."""

import math

from fedstill.privacy.mechanism import COUNT_SHARE
from fedstill.privacy.plan import PrivatePlan


def noise_in_means(plan: PrivatePlan, size: int) -> float:
    """The expected length of the noise in a class mean of vectors of norm 1, over all clients.

    ``size`` is the number of numbers in a vector. Each client adds noise of sigma (times the clip)
    to every number of its sum. The sizes of the classes are not known: a client's public size is
    divided equally among the classes that it sends. The worst class is meant.
    """
    clip = math.sqrt(1 - COUNT_SHARE**2) if plan.counts_released else 1.0
    senders: dict[int, int] = {}
    records: dict[int, float] = {}
    for number, classes in zip(plan.sizes, plan.classes, strict=True):
        for label in classes:
            senders[label] = senders.get(label, 0) + 1
            records[label] = records.get(label, 0.0) + number / len(classes)
    return max(
        plan.sigma / clip * math.sqrt(size * senders[label]) / (plan.rate * records[label])
        for label in senders
    )
