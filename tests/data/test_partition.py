"""Partitions: every record exactly once, the same bits for the same seed, clear refusals."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedstill.data import Partition, PartitionRule, describe, parse_partition, partition
from fedstill.data.partition.draws import round_shares
from fedstill.data.partition.rules import RULES, Classes, Dirichlet, Iid, Natural, Nodes, Quantity
from fedstill.errors import RequestError
from fedstill.rng import Rng

RNG = Rng(0).at("partition")
MNIST_LIKE = torch.arange(60_000) % 10

alphas = st.floats(min_value=1e-3, max_value=1e3) | st.sampled_from([1e-300, 1e-10, 5e-3, 1e308])
specs = st.one_of(
    st.just(Iid()),
    st.builds(Dirichlet, alphas, st.booleans()),
    st.builds(Quantity, alphas),
    st.builds(Classes, st.integers(1, 6)),
)


def check_covers(part: Partition, records: int) -> None:
    assert part.owner.dtype == torch.int32
    assert part.owner.shape == (records,)
    everyone = torch.cat([part.index(client) for client in range(part.clients)])
    assert torch.equal(everyone.sort().values, torch.arange(records))
    for client in range(part.clients):
        index = part.index(client)
        assert index.dtype == torch.int64
        assert bool((part.owner[index] == client).all())
        assert bool((index.diff() > 0).all())


@settings(max_examples=150, deadline=None)
@given(
    spec=specs,
    clients=st.integers(1, 40),
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=300),
    seed=st.integers(0, 2**32),
)
def test_every_record_lands_exactly_once(
    spec: PartitionRule, clients: int, labels: list[int], seed: int
) -> None:
    assume(clients <= len(labels))
    assume(not isinstance(spec, Classes) or clients * spec.per_client >= 6)
    known = torch.tensor(labels)
    rng = Rng(seed).at("partition")
    part = partition(known, spec, clients, 6, rng, allow_empty=True)
    check_covers(part, len(labels))
    counts = part.counts(known, 6)
    assert torch.equal(counts.sum(0), torch.bincount(known, minlength=6))
    assert torch.equal(counts.sum(1), part.sizes)
    again = partition(known, spec, clients, 6, rng, allow_empty=True)
    assert again.digest == part.digest


@settings(max_examples=60, deadline=None)
@given(
    spec=st.sampled_from(["iid", "dirichlet:0.5", "dirichlet:5", "quantity:0.01", "classes:3"]),
    clients=st.integers(2, 30),
    seed=st.integers(0, 1000),
)
def test_nobody_is_empty_by_default(spec: str, clients: int, seed: int) -> None:
    labels = torch.arange(3000) % 6
    part = partition(labels, spec, clients, 6, Rng(seed).at("partition"))
    check_covers(part, 3000)
    assert int(part.sizes.min()) >= 1


@settings(max_examples=100, deadline=None)
@given(
    owners=st.lists(st.integers(0, 9), min_size=1, max_size=100),
)
def test_natural_keeps_the_owners_in_the_data(owners: list[int]) -> None:
    groups = torch.from_numpy(np.unique(owners, return_inverse=True)[1])
    labels = torch.zeros(len(owners), dtype=torch.int64)
    part = partition(labels, Natural(), None, 1, RNG, groups=groups)
    check_covers(part, len(owners))
    assert torch.equal(part.owner, groups.int())


@settings(max_examples=100, deadline=None)
@given(
    parts=st.integers(1, 50),
    total=st.integers(0, 10**6),
    seed=st.integers(0, 2**32),
    alpha=alphas,
)
def test_rounded_shares_add_up_and_stay_within_one(
    parts: int, total: int, seed: int, alpha: float
) -> None:
    shares = Rng(seed).numpy().dirichlet(np.full(parts, min(alpha, 1e18)), size=2)
    assert np.isfinite(shares).all()
    counts = round_shares(shares, np.array([total, 0]))
    assert counts.sum(axis=1).tolist() == [total, 0]
    assert counts.min() >= 0
    assert np.abs(counts[0] - shares[0] * total).max() <= 1 + 1e-6


@pytest.mark.parametrize("spec", ["iid", "dirichlet:0.3", "classes:2", "quantity:0.5"])
def test_the_seed_decides_every_bit(spec: str) -> None:
    def digest(seed: int) -> str:
        return partition(MNIST_LIKE, spec, 20, 10, Rng(seed).at("partition")).digest

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)


# If this fails, runs made by earlier versions no longer mean what they say: note it in the
# changelog under "Numbers changed".
@pytest.mark.parametrize(
    ("spec", "start"),
    [
        ("iid", "f3197c6daa34"),
        ("dirichlet:0.1", "0f2199f1253e"),
        ("dirichlet:0.1:balanced", "53855f1ccc15"),
        ("classes:2", "6390113b45cc"),
        ("quantity:0.5", "0d97819cf455"),
    ],
)
def test_golden_partitions(spec: str, start: str) -> None:
    assert partition(MNIST_LIKE[:1000], spec, 10, 10, RNG).digest.startswith(start)


@pytest.mark.parametrize("alpha", [0.005, 1e-3])
@pytest.mark.parametrize("clients", [10, 100, 1000])
def test_tiny_alpha_is_sound_with_any_number_of_clients(alpha: float, clients: int) -> None:
    spec = Dirichlet(alpha)
    part = partition(MNIST_LIKE, spec, clients, 10, RNG, allow_empty=True)
    counts = part.counts(MNIST_LIKE, 10)
    assert counts.sum(0).tolist() == [6000] * 10
    # A class has about a = alpha * clients times log(6000 / a) owners, and never fewer than one.
    mass = alpha * clients
    expected = mass * math.log(6000 / mass + 1) + 1
    owners = (counts > 0).sum(0).double()
    assert 1 <= float(owners.mean()) <= 2 * expected


@pytest.mark.parametrize("alpha", [0.005, 0.01])
def test_ten_clients_at_tiny_alpha_need_no_empty_one(alpha: float) -> None:
    part = partition(MNIST_LIKE, Dirichlet(alpha), 10, 10, RNG)
    assert int(part.sizes.min()) >= 1


def test_dirichlet_is_the_distribution_it_says() -> None:
    # Shares of one class over 5 clients: mean 1/5, variance (1/5)(4/5) / (5 alpha + 1).
    labels = torch.zeros(2000, dtype=torch.int64)
    for alpha in (0.1, 1.0):
        draws = [
            partition(labels, Dirichlet(alpha), 5, 1, Rng(seed), allow_empty=True).sizes / 2000
            for seed in range(600)
        ]
        shares = torch.stack(draws)
        assert float((shares.mean(0) - 0.2).abs().max()) < 0.07
        expected = 0.2 * 0.8 / (5 * alpha + 1)
        assert float(shares.var(0).mean()) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("alpha", [0.005, 0.01, 0.1, 0.5])
def test_balanced_dirichlet_fills_no_client_beyond_its_last_class(alpha: float) -> None:
    for seed in range(5):
        part = partition(MNIST_LIKE, Dirichlet(alpha, balanced=True), 10, 10, Rng(seed))
        counts = part.counts(MNIST_LIKE, 10)
        before_last = counts.cumsum(1) - counts
        # Whoever gets records of a class had less than its even share before.
        assert int(before_last[counts > 0].max()) < 6000
        assert int(part.sizes.min()) >= 10


def test_balanced_dirichlet_is_plain_until_a_client_is_full() -> None:
    # One class: nobody is full before it, so the shares are a plain Dirichlet draw.
    labels = torch.zeros(2000, dtype=torch.int64)
    draws = [
        partition(labels, Dirichlet(1.0, balanced=True), 5, 1, Rng(seed), allow_empty=True).sizes
        for seed in range(600)
    ]
    shares = torch.stack(draws) / 2000
    assert float((shares.mean(0) - 0.2).abs().max()) < 0.03
    assert float(shares.var(0).mean()) == pytest.approx(0.2 * 0.8 / 6, rel=0.15)


def test_impossible_balanced_partitions_are_refused() -> None:
    with pytest.raises(RequestError, match=r"of 20 clients without 10 records.*fewer clients"):
        partition(MNIST_LIKE[:100], "dirichlet:1:balanced", 20, 10, RNG)


def test_impossible_dirichlet_says_how_many_stay_empty_and_what_helps() -> None:
    with pytest.raises(RequestError) as caught:
        partition(MNIST_LIKE, "dirichlet:0.001", 200, 10, RNG)
    message = str(caught.value)
    assert "of 200 clients without records" in message
    for remedy in ("fewer clients", "larger alpha", "--set allow_empty_clients=true"):
        assert remedy in message


def test_two_of_ten_classes_at_five_clients_are_disjoint() -> None:
    part = partition(MNIST_LIKE, "classes:2", 5, 10, RNG)
    counts = part.counts(MNIST_LIKE, 10)
    assert ((counts > 0).sum(0) == 1).all()
    assert ((counts > 0).sum(1) == 2).all()


@settings(max_examples=150, deadline=None)
@given(
    classes=st.integers(1, 12),
    clients=st.integers(1, 30),
    data=st.data(),
    seed=st.integers(0, 1000),
)
def test_classes_are_assigned_evenly_and_never_twice(
    classes: int, clients: int, data: st.DataObject, seed: int
) -> None:
    per_client = data.draw(st.integers(math.ceil(classes / clients), classes))
    labels = torch.arange(classes * 60) % classes
    part = partition(labels, Classes(per_client), clients, classes, Rng(seed))
    held = part.counts(labels, classes) > 0
    assert (held.sum(1) == per_client).all()
    owners = clients * per_client / classes
    assert int(held.sum(0).min()) >= math.floor(owners)
    assert int(held.sum(0).max()) <= math.ceil(owners)
    for column in part.counts(labels, classes).T:  # evenly over the owners
        mine = column[column > 0]
        assert int(mine.max() - mine.min()) <= 1


def test_classes_without_an_owner_are_refused() -> None:
    with pytest.raises(RequestError, match=r"2 of 10 classes.*use classes:3 or 5 clients"):
        partition(MNIST_LIKE, "classes:2", 4, 10, RNG)
    with pytest.raises(RequestError, match="only 10 classes"):
        partition(MNIST_LIKE, "classes:11", 4, 10, RNG)
    with pytest.raises(RequestError, match="fewer records than owners"):
        partition(torch.tensor([0, 0, 0, 0, 0, 1]), "classes:1", 6, 2, RNG)


def test_quantity_skews_sizes_and_not_labels() -> None:
    part = partition(MNIST_LIKE, "quantity:0.5", 20, 10, RNG)
    sizes = part.sizes
    assert int(sizes.max()) > 10 * int(sizes.min())
    share = part.counts(MNIST_LIKE, 10)[int(sizes.argmax())] / sizes.max()
    assert float((share - 0.1).abs().max()) < 0.02
    tiny = partition(MNIST_LIKE[:50], "quantity:0.001", 50, 10, RNG)
    assert tiny.sizes.tolist() == [1] * 50
    empty = partition(MNIST_LIKE[:50], "quantity:0.001", 50, 10, RNG, allow_empty=True)
    assert int(empty.sizes.min()) == 0


def test_numbers_of_clients_that_cannot_be() -> None:
    with pytest.raises(RequestError, match="more than the 5 training records"):
        partition(torch.zeros(5), "iid", 6, 1, RNG)
    with pytest.raises(RequestError, match="1 or more"):
        partition(torch.zeros(5), "iid", 0, 1, RNG)
    with pytest.raises(RequestError, match="number of clients is missing"):
        partition(torch.zeros(5), "iid", None, 1, RNG)
    with pytest.raises(RequestError, match=r"data\.client_column"):
        partition(torch.zeros(5), "natural", None, 1, RNG)
    groups = torch.tensor([0, 0, 1, 1, 2])
    assert partition(torch.zeros(5), "natural", 3, 1, RNG, groups=groups).clients == 3
    with pytest.raises(RequestError, match="natural has 3 clients"):
        partition(torch.zeros(5), "natural", 10, 1, RNG, groups=groups)
    with pytest.raises(IndexError):
        partition(torch.zeros(5), "iid", 2, 1, RNG).index(2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dirichlet:0", "greater than 0"),
        ("dirichlet:-1", "greater than 0"),
        ("dirichlet:nan", "finite"),
        ("dirichlet:inf", "finite"),
        ("dirichlet:x", "must be a number"),
        ("dirichlet", r"write it as dirichlet:ALPHA\[:balanced\]"),
        ("dirichlet:0.1:even", r"write it as dirichlet:ALPHA\[:balanced\]"),
        ("dirichlet:x:balanced", "must be a number"),
        ("quantity:0", "greater than 0"),
        ("classes:0", "1 or more"),
        ("classes:2.5", "whole number"),
        ("iid:3", "write it as iid"),
        ("dirichlit:0.1", "did you mean 'dirichlet'"),
        ("", "valid: "),
    ],
)
def test_wrong_partitions_are_explained(text: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        parse_partition(text)


ALL_RULES = [
    *(Iid(), Natural(), Nodes(), Dirichlet(0.005), Dirichlet(0.1, balanced=True)),
    *(Quantity(2.0), Classes(3)),
]


@pytest.mark.parametrize("spec", ALL_RULES, ids=str)
def test_what_is_written_reads_back(spec: PartitionRule) -> None:
    assert parse_partition(str(spec)) == spec


def test_every_rule_of_the_table_is_complete() -> None:
    assert {type(rule) for rule in ALL_RULES} == set(RULES.values())
    for rule in ALL_RULES:
        assert RULES[rule.word] is type(rule)
        assert rule.form().partition(":")[0] == str(rule).partition(":")[0] == rule.word
        assert rule.sentence


def test_saved_and_loaded(tmp_path: Path) -> None:
    part = partition(MNIST_LIKE[:500], "dirichlet:0.5", 7, 10, RNG)
    path = tmp_path / "run" / "partition.safetensors"
    part.save(path)
    back = Partition.load(path)
    part.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    assert (back.digest, back.clients) == (part.digest, 7)
    assert torch.equal(back.index(3), part.index(3))
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    raw = bytearray(path.read_bytes())
    raw[-4] ^= 1
    for contents in (bytes(raw), bytes(raw[:-1]), b""):
        path.write_bytes(contents)
        with pytest.raises(RequestError, match="not a readable partition"):
            Partition.load(path)
    with pytest.raises(RequestError):
        Partition.load(tmp_path / "nowhere")


def test_a_thousand_clients_take_no_more_memory_than_ten() -> None:
    few = partition(MNIST_LIKE, "iid", 10, 10, RNG)
    many = partition(MNIST_LIKE, "iid", 1000, 10, RNG)
    whole = many._order.untyped_storage().data_ptr()
    for client in (0, 500, 999):
        assert many.index(client).untyped_storage().data_ptr() == whole  # a view
    assert many._order.nbytes == few._order.nbytes


def test_skew_in_numbers() -> None:
    even = describe(torch.full((4, 2), 5))
    assert even["label_entropy"] == even["label_entropy_all"] == pytest.approx(1.0)
    split = describe(np.array([[10, 0], [0, 6], [0, 0]]))
    assert split["label_entropy"] == 0
    assert (split["empty_clients"], split["records"], split["records_median"]) == (1, 16, 6)
    assert (split["classes_min"], split["classes_max"]) == (0, 1)
    assert describe(np.zeros((2, 2), dtype=int))["label_entropy"] == 0
