"""Sketch: sums of random networks' features, and images that have the same means."""

import math
from pathlib import Path

import pytest
import torch

import fedstill
from fedstill.build import BuiltExperiment, build
from fedstill.data import Partition
from fedstill.errors import RequestError
from fedstill.methods.sketch import Sketch, Sums
from fedstill.records import Records
from fedstill.rng import Rng
from fedstill.steps.sketching import Distilling, Networks, Sketched, distil_images, sketch_sums
from fedstill.types import Reply, ServerContext

SMALL = {"name": "sketch", "networks": 3, "images_per_class": 2, "steps": 20, "server_steps": 5}
REQUEST = {"method": SMALL, "model": {"width": 4}, "clients": 3}


def networks(built: BuiltExperiment) -> Networks:
    return built.method.drawn(built.task, 7, 1, {})  # type: ignore[attr-defined, no-any-return]


def few(built: BuiltExperiment, number: int = 40) -> Records:
    train = built.dataset.train
    return Records(train, torch.arange(number), built.dataset.scaling)


def test_a_record_has_a_vector_of_norm_one() -> None:
    built = build(REQUEST)
    records = few(built)
    found = Sketched(networks(built))(records)["sum"]
    assert found.shape[:2] == (40, 3)
    assert torch.allclose(found.flatten(1).norm(dim=1), torch.ones(40), atol=1e-5)
    # By hand: the last two blocks of the second network, for one record.
    outputs = built.model.features(networks(built).weights[1], records.take(torch.tensor([5]))[0])
    parts = [out.flatten() / out.norm() / math.sqrt(6) for out in outputs[:-1][-2:]]
    assert torch.allclose(found[5, 1], torch.cat(parts), atol=1e-5)


def test_sums_are_by_class() -> None:
    built = build(REQUEST)
    records = few(built)
    sums, counts = sketch_sums(records, networks(built), 10)
    vectors = Sketched(networks(built))(records)["sum"].double()
    for label in range(10):
        rows = vectors[records.labels == label]
        assert int(counts[label]) == len(rows)
        assert torch.allclose(sums[label], rows.sum(0), atol=1e-5)


def sent(built: BuiltExperiment) -> list[Reply[Sums]]:
    ctx = ServerContext(built.task, 1, built.rng)
    message = built.method.broadcast(ctx, built.method.init(ctx))
    return [
        Reply(k, built.method.client(built.runner.context(1, k), message, None)[0])
        for k in range(built.partition.clients)
    ]


def test_any_partition_gives_the_same_sums() -> None:
    number = len(build(REQUEST).dataset.train)
    owners = [(torch.zeros(number), 1), (torch.arange(number) % 3, 3)]
    one, three = (
        sent(build(REQUEST, partition=Partition(owner.int(), clients))) for owner, clients in owners
    )
    together = torch.stack([reply.message.sums for reply in three]).sum(0)
    assert torch.allclose(one[0].message.sums, together, atol=1e-3)


def test_both_sides_draw_the_same_networks_and_others_in_the_next_round() -> None:
    built = build({**REQUEST, "rounds": 2})
    method: Sketch = built.method  # type: ignore[assignment]
    first, second = (ServerContext(built.task, n, built.rng.at("round", n)) for n in (1, 2))
    state = method.init(first)
    seeds = [method.broadcast(ctx, state).seed for ctx in (first, second)]
    assert seeds[0] != seeds[1]
    again = [method.drawn(built.task, seeds[0], 1, {}).weights[2] for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*(w.values() for w in again), strict=True))
    around = method.drawn(built.task, seeds[1], 2, state.params).weights[0]
    distance = math.sqrt(
        sum(float((around[k] - v).square().sum()) for k, v in state.params.items())
    )
    assert distance == pytest.approx(method.radius, rel=1e-4)


def test_images_approach_the_means() -> None:
    built = build(REQUEST)
    made = networks(built)
    sums, counts = sketch_sums(few(built, 200), made, 10)
    targets = (sums / counts[:, None, None]).float()
    start = torch.randn(10, 4, *built.task.shape, generator=torch.Generator().manual_seed(0))
    how = Distilling(steps=3, learning_rate=1e-9)
    _, before = distil_images(made, targets, start, how, Rng(0))
    images, after = distil_images(made, targets, start, Distilling(150, 0.1), Rng(0))
    assert after < before / 4
    assert images.shape == start.shape


def test_the_set_is_kept_and_can_be_evaluated(tmp_path: Path) -> None:
    fedstill.run(
        "sketch",
        clients=3,
        out=tmp_path / "run",
        set={
            "method.steps": 100,
            "method.networks": 3,
            "method.images_per_class": 3,
            "method.server_steps": 100,
        },
    )
    stored = fedstill.load_set(tmp_path / "run")
    assert len(stored) == 30
    found = fedstill.evaluate(tmp_path / "run", networks=1)
    assert found.set[0].networks[0].accuracy > 0.6


def test_a_class_that_nobody_holds_has_no_images() -> None:
    built = build(REQUEST)
    owner = torch.where(built.dataset.train.labels < 4, 0, 1)
    built = build(REQUEST, partition=Partition(owner.int(), 3))
    ctx = ServerContext(built.task, 1, built.rng)
    method: Sketch = built.method  # type: ignore[assignment]
    only = sent(built)[0]
    after = method.server(ctx, method.init(ctx), [only])
    assert after.held is not None
    assert after.held.tolist() == [0, 1, 2, 3]


def test_texts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "shakespeare").mkdir()
    text = "ANN:\n" + "the cat sees a cow. " * 20 + "\n\nBEN:\n" + "the sun sees a sea. " * 20
    (tmp_path / "shakespeare/input.txt").write_text(text)
    with pytest.raises(RequestError, match="sketch distils images"):
        fedstill.run("sketch", data="shakespeare", data_dir=tmp_path, out=tmp_path / "run")


def test_one_access_whatever_the_number_of_networks() -> None:
    for number in (1, 50):
        form = Sketch(networks=number).private_form(1.0)
        assert form.accesses == 1
