"""Closed-form learning from sums: any partition, one model; and what its releases reveal."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedstill
from fedstill.build import build
from fedstill.data import Partition, Split
from fedstill.errors import RequestError
from fedstill.methods.analytic import Analytic, Statistics
from fedstill.models import MLP
from fedstill.private import ClassSums
from fedstill.records import Records
from fedstill.scaling import Scaling
from fedstill.steps.closed_form import HEADS, Head, Moments, solve, steadied
from fedstill.steps.statistics import (
    OuterProducts,
    Residuals,
    class_sums,
    scatter_about,
    symmetric,
    triangle,
)
from fedstill.types import ClientContext, Params, Reply, ServerContext

REQUEST = {"method": "analytic", "features": "orientation"}


def vectors(number: int = 60, size: int = 5, classes: int = 3, seed: int = 0) -> Records:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % classes
    centres = torch.randn(classes, size, generator=generator)
    x = centres[labels] + 0.5 * torch.randn(number, size, generator=generator)
    x = x / x.norm(dim=1, keepdim=True)
    return Records(Split(x, labels), torch.arange(number), Scaling((), ()))


def moments_of(records: Records, classes: int = 3) -> Moments:
    sums, counts = class_sums(records, classes)
    x = records.all()[0].double()
    return Moments(sums, counts, x.T @ x, 0.0, torch.zeros(classes).double())


@given(st.integers(1, 7), st.integers(0, 10_000))
@settings(deadline=None, max_examples=30)
def test_a_triangle_keeps_norms_and_can_be_undone(size: int, seed: int) -> None:
    matrix = torch.randn(size, size, generator=torch.Generator().manual_seed(seed)).double()
    matrix = matrix + matrix.T
    packed = triangle(matrix)
    assert float(packed.norm()) == pytest.approx(float(matrix.norm()))
    assert torch.allclose(symmetric(packed, size), matrix)


@given(st.integers(0, 10_000), st.floats(0.01, 10))
@settings(deadline=None, max_examples=50)
def test_a_clipped_record_changes_the_scatter_by_at_most_the_square(seed: int, rho: float) -> None:
    """The sensitivity of the second release: |r r^T| = |r|^2 <= rho^2 where noise is added."""
    rows = 3 * torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
    products = OuterProducts(rows)
    dense = products.dense()["scatter"]
    assert torch.allclose(products.squared_norms().sqrt(), dense.norm(dim=1).double(), rtol=1e-4)
    factors = (rho**2 / products.squared_norms().sqrt()).clamp(max=1)
    both = products.weighted(factors)["scatter"]
    without = products.weighted(torch.cat([factors[:3], torch.zeros(1)]))["scatter"]
    assert float((both - without).norm()) <= rho**2 * (1 + 1e-6)
    assert torch.allclose(both, (factors[:, None] * dense.double()).sum(0), rtol=1e-4, atol=1e-6)


def test_lda_is_what_the_textbook_says() -> None:
    """Log densities of normal distributions with class means and the pooled covariance."""
    records = vectors()
    x, labels = records.all()
    layer = solve(moments_of(records), "lda", penalty=1e-9)
    x = x.double()
    means = torch.stack([x[labels == c].mean(0) for c in range(3)])
    within = sum(
        torch.outer(row - means[c], row - means[c]) for row, c in zip(x, labels, strict=True)
    )
    precision = torch.linalg.inv(torch.as_tensor(within) / len(x))
    logits = torch.stack(
        [
            torch.stack([-(row - m) @ precision @ (row - m) / 2 + math.log(1 / 3) for m in means])
            for row in x
        ]
    )
    found = x @ layer["linear.weight"].double().T + layer["linear.bias"].double()
    assert torch.allclose(found.log_softmax(1), logits.log_softmax(1), atol=1e-3)


@pytest.mark.parametrize("head", ["lda", "ridge"])
def test_without_a_penalty_a_feature_that_never_varies_is_ignored(head: Head) -> None:
    """On digits, whose corners are always black, the state would not be finite."""
    found = moments_of(vectors())
    right = solve(found, head, penalty=0.0)
    wider = Moments(
        F.pad(found.sums, (0, 1)),
        found.counts,
        F.pad(found.second, (0, 1, 0, 1)),
        found.noise,
        found.sums_noise,
    )
    layer = solve(wider, head, penalty=0.0)
    assert torch.allclose(layer["linear.weight"], F.pad(right["linear.weight"], (0, 1)), rtol=1e-4)
    assert torch.allclose(layer["linear.bias"], right["linear.bias"], rtol=1e-4)


def test_ridge_solves_the_normal_equations() -> None:
    records, penalty = vectors(), 0.1
    x, labels = records.all()
    moments = moments_of(records)
    layer = solve(moments, "ridge", penalty)
    x = x.double()
    centred = x - x.mean(0)
    scatter = centred.T @ centred
    strength = penalty * float(scatter.trace()) / 5
    one_hot = torch.nn.functional.one_hot(labels, 3).double()
    expected = torch.linalg.solve(
        scatter + strength * torch.eye(5), centred.T @ (one_hot - one_hot.mean(0))
    )
    assert torch.allclose(layer["linear.weight"].double(), expected.T, atol=1e-5)
    found = x.mean(0) @ layer["linear.weight"].double().T + layer["linear.bias"].double()
    assert torch.allclose(found, one_hot.mean(0), atol=1e-5)


def test_prototype_is_the_nearest_mean() -> None:
    records = vectors()
    x, labels = records.all()
    layer = solve(moments_of(records), "prototype", 0.0)
    means = torch.stack([x[labels == c].mean(0) for c in range(3)])
    expected = torch.cdist(x, means).argmin(1)
    found = (x @ layer["linear.weight"].T + layer["linear.bias"]).argmax(1)
    assert torch.equal(found, expected)


def layer_of(owner: Tensor, clients: int, head: Head) -> Params:
    """One round of the built-in digits, partitioned like this."""
    request = {**REQUEST, "method": {"name": "analytic", "head": head}, "clients": clients}
    built = build(request, partition=Partition(owner.int(), clients))
    ctx = ServerContext(built.task, 1, built.rng)
    method = built.method
    state = method.init(ctx)
    message = method.broadcast(ctx, state)
    replies = []
    for client in range(clients):
        context = built.runner.context(1, client)
        replies.append(Reply(client, method.client(context, message, None)[0]))
    return method.params(method.server(ctx, state, replies))


@pytest.mark.parametrize("head", HEADS)
def test_any_partition_gives_the_same_model(head: Head) -> None:
    """All in one place, by class, at random, and with clients of one record."""
    labels = build(REQUEST).dataset.train.labels
    number = len(labels)
    generator = torch.Generator().manual_seed(0)
    uneven = torch.where(torch.arange(number) < 3, torch.arange(number), 3)
    owners = [
        (torch.zeros(number), 1),
        (labels // 2, 5),
        (torch.randint(7, (number,), generator=generator), 7),
        (uneven, 4),
    ]
    first, *others = (layer_of(owner, clients, head) for owner, clients in owners)
    for other in others:
        for name, weight in first.items():
            scale = float(weight.abs().max())
            assert float((other[name] - weight).abs().max()) < 2e-3 * scale


def test_a_class_that_nobody_holds_is_never_predicted() -> None:
    records = vectors(classes=2)
    for head in HEADS:
        layer = solve(moments_of(records), head, 1e-3)
        assert all(bool(torch.isfinite(w).all()) for w in layer.values())
        logits = records.all()[0] @ layer["linear.weight"].T + layer["linear.bias"]
        assert int(logits.argmax(1).max()) < 2


def test_fewer_records_than_features_give_a_finite_layer() -> None:
    records = vectors(number=4, size=20)
    for head in HEADS:
        layer = solve(moments_of(records), head, 1e-3)
        assert all(bool(torch.isfinite(w).all()) for w in layer.values())


def test_it_learns_the_digits_in_one_round(tmp_path: Path) -> None:
    result = fedstill.run("analytic", out=tmp_path / "run")
    assert result.summary.rounds_done == 1
    assert result.summary.accuracy is not None
    assert result.summary.accuracy > 0.97


def test_another_network_is_refused() -> None:
    built = build({"method": "analytic", "model": "mlp"})
    with pytest.raises(RequestError, match="analytic solves for one linear layer"):
        built.method.upload(built.task)


class Door:
    """A door without noise that records what passes: the vectors and the clip of each release."""

    rate, sigma, clip, class_clip, size = 1.0, 0.0, 1.0, 0.9, 60
    expected_batch = 60.0

    def __init__(self, records: Records, classes: Tensor) -> None:
        self.records, self.classes = records, classes
        self.clips: list[float] = []
        self.longest = 0.0

    def noisy_class_sums(self, per_record: Any) -> Any:
        found = per_record(self.records)["sum"]
        self.longest = float(found.norm(dim=1).max())
        rows = [found[self.records.labels == c].sum(0) for c in self.classes.tolist()]
        counts = [float((self.records.labels == c).sum()) for c in self.classes.tolist()]
        return ClassSums({"sum": torch.stack(rows)}, torch.tensor(counts))

    def noisy_mean(self, per_record: Any, *, clip: float | None = None) -> Params:
        raise AssertionError("not used")

    def noisy_sum(self, per_record: Any, *, clip: float | None = None) -> Params:
        assert clip is not None
        self.clips.append(clip)
        products = per_record(self.records)
        factors = (clip / products.squared_norms().sqrt().clamp(min=1e-30)).clamp(max=1)
        found: Params = products.weighted(factors)
        return found


def test_without_noise_the_releases_are_the_plain_statistics() -> None:
    """But for clipping, at half the root mean square distance, and with the length it costs given
    back."""
    records = vectors()
    built = build({"method": "analytic", "model": {"name": "mlp", "depth": 0}})
    task = dataclasses.replace(built.task, model=MLP((5,), 3, depth=0), shape=(5,), classes=3)
    door = Door(records, torch.arange(3))
    ctx = ClientContext(task, 1, 0, built.rng, private=door)
    found = Analytic().released(ctx, door)
    sums, counts = class_sums(records, 3)
    assert torch.allclose(found.sums.double(), sums, atol=1e-4)
    assert torch.equal(found.counts.double(), counts)
    assert door.longest == pytest.approx(door.class_clip)  # the whole clip, and no more
    means = sums / counts[:, None]
    distances = (records.all()[0].double() - means[records.labels]).square().sum(1)
    assert door.clips == [pytest.approx(0.25 * float(distances.mean()), rel=1e-4)]
    exact = scatter_about(records, means)
    released = symmetric(found.scatter.double(), 5)
    assert float(released.trace()) == pytest.approx(float(distances.sum()), rel=1e-4)
    # The directions in which records differ are those of the plain scatter.
    inner = float((released * symmetric(exact, 5)).sum())
    assert inner > 0.95 * float(released.norm()) * float(symmetric(exact, 5).norm())
    wide = Residuals(means.float())(records).weighted(torch.ones(60))["scatter"]
    assert torch.allclose(wide, exact, atol=1e-4)


def noisy_matrix(size: int, noise: float, seed: int) -> tuple[Tensor, Tensor]:
    """A positive matrix with a falling spectrum, and the same with noise on its triangle."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(size, size, generator=generator).double()).Q
    true = (basis * 100 / torch.arange(1, size + 1) ** 1.5) @ basis.T
    entries = triangle(true)
    entries += noise * torch.randn(len(entries), generator=generator).double()
    return true, symmetric(entries, size)


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.5])
def test_the_inverse_of_a_steadied_matrix_is_nearer_to_the_true_one(noise: float) -> None:
    """Than that of the positive part with nothing but a tiny penalty."""
    true, noisy = noisy_matrix(120, noise, seed=1)
    values, vectors = torch.linalg.eigh(noisy)
    plain = (vectors / (values.clamp(min=0) + 1e-3 * float(values.mean()))) @ vectors.T
    found = torch.linalg.inv(steadied(noisy, noise))
    wanted = torch.linalg.inv(true)
    assert float((found - wanted).norm()) < 0.7 * float((plain - wanted).norm())
    assert float(torch.linalg.eigvalsh(steadied(noisy, noise)).min()) > 0


@given(st.integers(0, 1000))
@settings(max_examples=20)
def test_steadying_does_not_depend_on_the_axes(seed: int) -> None:
    _, noisy = noisy_matrix(30, 0.2, seed)
    generator = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(30, 30, generator=generator).double()).Q
    turned = steadied(turn @ noisy @ turn.T, 0.2)
    assert torch.allclose(turned, turn @ steadied(noisy, 0.2) @ turn.T, atol=1e-8)


def test_with_little_noise_a_matrix_stays_as_it_is() -> None:
    true, noisy = noisy_matrix(40, 1e-7, seed=2)
    assert torch.allclose(steadied(noisy, 1e-7), true, atol=1e-4)


def test_noisy_means_make_records_look_farther_away() -> None:
    """Noise of 0.3 in means of 10 records each: 20 (0.3 / 10)^2 more along every direction."""
    sums, counts = torch.zeros(2, 3).double(), torch.full((2,), 10.0).double()
    noise = torch.full((2,), 0.3).double()
    exact = Moments(sums, counts, torch.eye(3).double(), 1e-9, 0 * noise).within
    noisy = Moments(sums, counts, torch.eye(3).double(), 1e-9, noise).within
    assert torch.allclose(noisy - exact, 20 * 0.03**2 * torch.eye(3).double())


def test_the_server_adds_the_noise_levels_of_all_clients() -> None:
    built = build(REQUEST)
    ctx = ServerContext(built.task, 1, built.rng)
    method: Analytic = built.method  # type: ignore[assignment]
    size, classes = built.task.shape[0], built.task.classes
    state = method.init(ctx)
    blank = Statistics(
        torch.zeros(classes, size),
        torch.ones(classes),
        torch.zeros(size * (size + 1) // 2),
        3.0,
        2.0,
    )
    after = method.server(ctx, state, [Reply(0, blank), Reply(1, blank)])
    assert after.variance == pytest.approx(18.0)
    assert torch.allclose(after.sums_variance, torch.full((classes,), 8.0).double())
    assert method.report(after, [])["noise_to_scatter"] > 0


def test_a_private_run_reads_all_records_twice(tmp_path: Path) -> None:
    result = fedstill.run(
        "analytic",
        features="orientation",
        clients=2,
        partition="iid",
        epsilon=8,
        out=tmp_path / "run",
    )
    lines = (tmp_path / "run/ledger/client-00000.jsonl").read_text().splitlines()
    assert len(lines) == 2
    assert '"q":1.0' in lines[0].replace(" ", "")
    assert result.summary.epsilon is not None
    assert result.summary.epsilon <= 8
    assert result.summary.accuracy is not None
    assert result.summary.accuracy > 0.75
