"""How much of a statistic is noise: predicted from public numbers, and as released."""

import math
from typing import Any

import pytest
import torch

from fedstill.build import BuiltExperiment, build
from fedstill.forecast import notes
from fedstill.privacy.noise_share import noise_in_means
from fedstill.types import ServerContext


def built(epsilon: float, **privacy: Any) -> BuiltExperiment:
    request = {
        "method": {"name": "analytic", "head": "prototype"},
        "features": "orientation",
        "clients": 3,
        "partition": "iid",
        "privacy": {"epsilon": epsilon, "public_size": 500, **privacy},
    }
    return build(request).planned()


def test_the_length_by_hand() -> None:
    """500 records over 10 classes at each of 3 clients: 150 per class, three noises in a sum."""
    run = built(1.0, class_counts="public")
    assert run.plan is not None
    size = run.task.shape[0]
    expected = run.plan.sigma * math.sqrt(3 * size) / 150
    assert noise_in_means(run.plan, size) == pytest.approx(expected)


def test_the_length_as_released(tmp_path: Any) -> None:
    run = built(1.0).with_ledgers(tmp_path)
    assert run.plan is not None
    context = ServerContext(run.task, 1, run.rng)
    message = run.method.broadcast(context, run.method.init(context))
    replies = [
        run.method.client(run.runner.context(1, client), message, None)[0] for client in range(3)
    ]
    exact = [run.client_records.of(client, run.task) for client in range(3)]
    vectors = torch.cat([records.all()[0] for records in exact])
    labels = torch.cat([records.labels for records in exact])
    truth = torch.stack([vectors[labels == label].sum(0) for label in range(10)])
    noise = torch.stack([reply.sums for reply in replies]).sum(0) - truth
    length = float(noise.norm(dim=1).mean()) / 150
    assert noise_in_means(run.plan, run.task.shape[0]) == pytest.approx(length, rel=0.1)


def test_a_client_that_alone_has_a_class_makes_the_most_noise() -> None:
    run = built(1.0)
    assert run.plan is not None
    before = noise_in_means(run.plan, 100)
    object.__setattr__(run.plan, "classes", ((0, 1), (1,), (1,)))
    assert noise_in_means(run.plan, 100) == pytest.approx(before * 150 / 250 / math.sqrt(3))


def test_a_private_run_says_how_it_spends_its_budget_and_why() -> None:
    plan = next(note for note in notes(built(1.0), first=True) if note.startswith("plan: "))
    assert plan.startswith("plan: 1 access per client and round, to all records, with sigma 3.7")
    request = {"method": "fedavg", "clients": 3, "privacy": {"epsilon": 3.0, "public_size": 500}}
    sampled = build(request).planned()
    plan = next(note for note in notes(sampled, first=True) if note.startswith("plan: "))
    assert "to samples of 0.1 of the records" in plan


@pytest.mark.parametrize(("epsilon", "warned"), [(0.01, True), (50.0, False)])
def test_a_budget_too_small_is_said_before_the_run(epsilon: float, warned: bool) -> None:
    found = [note for note in notes(built(epsilon), first=True) if "the noise in a class" in note]
    assert bool(found) == warned
    assert all("raise epsilon" in note for note in found)
