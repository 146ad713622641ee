"""The defence: attackers are found, honest clients are trusted whatever classes they hold."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import fedstill
from fedstill.data import DataSettings, load
from fedstill.defence.evidence import Directions, Prototypes, Value, by_model, by_pixels
from fedstill.defence.judge import Verdicts, judge
from fedstill.defence.settings import DefenceSettings
from fedstill.errors import RequestError
from fedstill.methods.feddm import FedDM
from fedstill.methods.feddualmatch import FedDualMatch
from fedstill.methods.real import Real
from fedstill.methods.shared.messages import Weights
from fedstill.methods.shared.surrogate import Distilled
from fedstill.models import MLP, ConvNet, Model
from fedstill.observe.observer import Observer
from fedstill.records import SyntheticSet
from fedstill.rng import Rng
from fedstill.runs.folder import RunFolder
from fedstill.runs.metrics import RoundMetrics
from fedstill.runs.sets import load_set
from fedstill.testing import as_vector, toy_experiment
from fedstill.types import ClientContext, Reply, ServerContext, Task

DATA = load(DataSettings())
DROP = DefenceSettings(mode="drop", folds=3, steps=40)


def task(model: Model | None = None) -> Task:
    network = model or ConvNet(DATA.shape, 10, width=8)
    return Task(network, DATA.shape, 10, 10, 5, DATA.scaling)


def records(classes: Sequence[int], seed: int, each: int = 8) -> SyntheticSet:
    """Random records of these classes, as ``real`` would send them."""
    generator = Rng(seed).torch()
    rows = []
    for label in classes:
        found = (DATA.train.labels == label).nonzero().flatten()
        rows.append(found[torch.randperm(len(found), generator=generator)[:each]])
    index = torch.cat(rows)
    return SyntheticSet(DATA.scaling(DATA.train.inputs[index]), DATA.train.labels[index].long())


def attacked(sent: SyntheticSet, kind: str, seed: int = 99) -> SyntheticSet:
    if kind == "noise":
        noise = torch.randn(sent.images.shape, generator=Rng(seed).torch())
        return SyntheticSet(noise, sent.labels)
    if kind == "flipped":
        return SyntheticSet(sent.images, (sent.labels + 1) % 10)
    return SyntheticSet(sent.images * 10, sent.labels)


def some_classes(client: int) -> list[int]:
    return sorted((client * 3 + step) % 10 for step in (0, 1, 3, 4, 6))


@cache
def honest() -> dict[int, SyntheticSet]:
    """Eight clients with five classes each, no two alike."""
    return {client: records(some_classes(client), client) for client in range(8)}


def judged(sets: dict[int, SyntheticSet], settings: DefenceSettings = DROP) -> Verdicts:
    problem = task()
    return judge(problem, problem.model.init(Rng(1).torch()), sets, settings, Rng(2))


def distrusted(verdicts: Verdicts) -> list[int]:
    return sorted(client for client, verdict in verdicts.items() if verdict.trust < 1)


def test_honest_clients_are_trusted() -> None:
    verdicts = judged(honest())
    assert {v.trust for v in verdicts.values()} == {1.0}
    assert {v.reason for v in verdicts.values()} == {""}
    assert set(verdicts[0].measures) == {"direction", "loss", "agreement", "size", "roughness"}


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("noise", "drop"), ("flipped", "drop"), ("flipped", "weigh"), ("scaled", "drop")],
)
def test_attackers_are_found_and_nobody_else(kind: str, mode: Any) -> None:
    wrong = {client: attacked(honest()[client], kind, client) for client in (2, 5)}
    verdicts = judged({**honest(), **wrong}, replace(DROP, mode=mode))
    assert distrusted(verdicts) == [2, 5]
    assert all(verdicts[client].reason for client in wrong)
    most = max(verdicts[client].trust for client in wrong)
    assert most == 0 if mode == "drop" else most < 0.7


@pytest.mark.parametrize("per_client", [1, 2])
def test_clients_with_classes_that_no_other_holds_are_trusted(per_client: int) -> None:
    """No class in common: only the pixels can be compared."""
    sets = {
        client: records(range(client * per_client, (client + 1) * per_client), client)
        for client in range(10 // per_client)
    }
    verdicts = judged(sets)
    assert distrusted(verdicts) == []
    assert set(verdicts[0].measures) == {"size", "roughness"}
    sets[3] = attacked(sets[3], "scaled")
    verdicts = judged(sets)
    assert distrusted(verdicts) == [3]
    assert "pixels have size" in verdicts[3].reason


def test_a_client_with_few_and_rare_classes_is_trusted() -> None:
    """Most have digits 0 to 4; one has 8 and 9, of which another has some, and one 9 alone."""
    sets = {client: records(range(5), client) for client in range(5)}
    sets |= {5: records([8, 9], 5), 6: records([0, 8], 6), 7: records([9], 7)}
    assert distrusted(judged(sets)) == []


def test_where_one_contradicts_one_both_are_innocent() -> None:
    sets = {client: records(range(5), client) for client in range(4)}
    sets[4] = records([7], 4)
    sets[5] = SyntheticSet(
        records([9], 5).images, torch.full((8,), 7)
    )  # says that nines are sevens
    assert distrusted(judged(sets)) == []


def test_a_client_whom_attackers_alone_contradict_is_cleared() -> None:
    """Client 7 has sevens; the attackers call their threes sevens, and all else wrong too."""
    sets = {client: records(range(5), client) for client in range(5)}
    sets |= {
        c: SyntheticSet(records([0, 1, 3], c).images, torch.tensor([1, 0, 7]).repeat_interleave(8))
        for c in (5, 6)
    }
    sets[7] = records([7], 7)
    verdicts = judged(sets)
    assert verdicts[7].trust == 1
    assert distrusted(verdicts) == [5, 6]


def test_fewer_than_half_can_lose_trust() -> None:
    sets = dict(honest())
    for client, factor in zip((0, 1, 2), (1e-3, 1e3, 1e6), strict=True):
        sets[client] = SyntheticSet(sets[client].images * factor, sets[client].labels)
    few = {client: sets[client] for client in (0, 1, 2, 3)}
    assert len(distrusted(judged(few))) <= 1
    pair = {client: sets[client] for client in (1, 3)}
    assert distrusted(judged(pair)) == []


def test_images_beyond_all_measure_do_not_spoil_the_rest() -> None:
    """A network without a norm overflows on them: still a verdict, and on the right client."""
    sets = {**honest(), 3: SyntheticSet(honest()[3].images * 1e30, honest()[3].labels)}
    problem = task(MLP(DATA.shape, 10))
    verdicts = judge(problem, problem.model.init(Rng(1).torch()), sets, DROP, Rng(2))
    assert distrusted(verdicts) == [3]
    assert all(math.isfinite(x) for v in verdicts.values() for x in v.measures.values())


def test_the_order_of_the_clients_does_not_matter_and_soft_labels_are_fine() -> None:
    few = {client: honest()[client] for client in range(4)}
    assert judged(dict(reversed(few.items()))) == judged(few)
    soft = {
        client: SyntheticSet(hard.images, torch.nn.functional.one_hot(hard.labels, 10).float())
        for client, hard in few.items()
    }
    assert distrusted(judged(soft)) == []


def test_directions_are_the_obvious_cosines() -> None:
    problem = task()
    params = problem.model.init(Rng(4).torch())
    sets = {0: records([1, 2], 0), 1: records([1], 1), 2: records([1, 3], 2)}

    def unit(client: int) -> torch.Tensor:
        rows = sets[client].labels == 1
        x, y = sets[client].images[rows], sets[client].labels[rows]
        weights = {k: v.clone().requires_grad_(True) for k, v in params.items()}
        loss = problem.loss(problem.model.apply(weights, x), y).mean()
        flat = torch.autograd.grad(
            loss, list(weights.values()), allow_unused=True, materialize_grads=True
        )
        whole = torch.cat([g.flatten() for g in flat])
        return torch.nn.functional.normalize(whole, dim=0)

    directions = Directions.at(problem, params, sets)
    others = unit(1) + unit(2)
    found = directions.of(0, {0, 1, 2})["direction"]
    assert found.value == pytest.approx(float(unit(0) @ others / others.norm()), abs=1e-4)
    assert found.references == 2
    assert directions.of(0, {0, 2})["direction"].value == pytest.approx(
        float(unit(0) @ unit(2)), abs=1e-4
    )
    assert directions.of(0, {0}) == {}


def test_values_by_hand() -> None:
    images = torch.tensor([[[[3.0, -3.0], [3.0, -3.0]]]])
    found = by_pixels(images)
    assert found["size"].value == pytest.approx(3.0)
    # Differences: 0 downwards, 6 across; their root mean square is sqrt(18).
    assert found["roughness"].value == pytest.approx(math.sqrt(18) / 3)
    problem = task()
    params = problem.model.init(Rng(4).torch())
    synthetic = records([1, 2], 0)
    labels = synthetic.labels
    losses = problem.loss(problem.model.apply(params, synthetic.images), labels)
    evidence = by_model(problem, params, synthetic, {1: [5, 6, 7], 2: [5]})
    expected = (3 * losses[labels == 1].mean() + losses[labels == 2].mean()) / 4
    assert evidence["loss"].value == pytest.approx(float(expected), rel=1e-5)
    assert evidence["loss"].references == 3
    assert by_model(problem, params, synthetic, {1: [], 2: []}) == {}


def test_the_nearest_prototype_is_that_of_the_median() -> None:
    """Features are the numbers themselves: two clients of three say that class 0 is near 0."""
    features = {
        0: torch.tensor([[0.0], [1.0]]),
        1: torch.tensor([[0.2], [5.0]]),
        2: torch.tensor([[0.1], [5.2]]),
        3: torch.tensor([[5.0], [0.0]]),  # the wrong way round
    }
    classes = {client: torch.tensor([0, 1]) for client in range(4)}
    known = Prototypes(features, classes)
    # Prototypes for client 0: medians 0.2 and 5; its 1.0 lies nearer to class 0.
    assert known.of(0, {0, 1, 2, 3})["agreement"] == Value(0.5, 3)
    assert known.of(1, {0, 1, 2, 3})["agreement"] == Value(1.0, 3)
    assert known.of(3, {0, 1, 2, 3})["agreement"] == Value(0.0, 3)
    assert known.of(0, {0}) == {}


@dataclass(frozen=True)
class Attacked(Real):
    """Clients 1, 4 and 6 of eight send something else than their records."""

    kind: str = "flipped"

    def client(self, ctx: ClientContext, message: Weights, state: None) -> tuple[Distilled, None]:
        up, _ = super().client(ctx, message, state)
        if ctx.client in (1, 4, 6):
            up = replace(up, synthetic=attacked(up.synthetic, self.kind))
        return up, None


class Notes(Observer):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def run(mode: str, out: Path, observer: Observer | None = None) -> list[RoundMetrics]:
    method = Attacked(images_per_class=5, server_epochs=15, server_learning_rate=0.05)
    settings: dict[str, Any] = {"defence.mode": mode, "model.width": 16}
    if mode != "off":
        settings["defence.folds"] = 3
    return fedstill.run(
        method,
        clients=8,
        partition="dirichlet:0.5",
        rounds=2,
        workers=1,
        out=out,
        set=settings,
        observer=observer,
    ).metrics


@pytest.mark.slow
def test_a_run_under_attack_is_better_with_it(tmp_path: Path) -> None:
    notes = Notes()
    bare, defended = run("off", tmp_path / "off"), run("drop", tmp_path / "drop", notes)
    without, with_it = bare[-1].accuracy, defended[-1].accuracy
    assert without is not None
    assert with_it is not None
    assert with_it > without + 0.05
    last = defended[-1]
    assert last.clients == [0, 2, 3, 5, 7]
    assert last.failed == {}
    assert [c for c, v in last.defence.items() if v.trust < 1] == [1, 4, 6]
    assert any(text.startswith("round 2: client 4 is dropped: ") for text in notes.notes)
    assert bare[-1].defence == {}
    # What was sent is kept, whether it was believed or not.
    stored = load_set(tmp_path / "drop" / "synthetic" / "round-0002.safetensors")
    assert stored.clients.unique().tolist() == list(range(8))
    assert RunFolder(tmp_path / "drop").read_metrics()[-1] == last


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "distdd", "central"])
def test_methods_without_sets_are_refused(method: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=rf"defence.mode = 'drop': the clients of {method} send"):
        fedstill.run(method, out=tmp_path / "run", set={"defence.mode": "drop"})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"mode": "on"}, "defence.mode: expected one of 'off', 'weigh', 'drop'"),
        ({"mode": "drop", "limit": 0}, "defence.limit: expected float > 0"),
        ({"mode": "drop", "folds": 1}, "defence.folds: expected int >= 2"),
        ({"modes": "drop"}, "defence.modes: no such setting; did you mean 'mode'"),
    ],
)
def test_wrong_sections_are_refused(section: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        fedstill.run("feddm", out=tmp_path / "run", config={"defence": section})
    assert message in str(caught.value)


def distilled(*trusts: float) -> list[Reply[Distilled]]:
    return [
        Reply(client, Distilled(records([client, 9], client, 2), 10 * (client + 1), 0.0), trust)
        for client, trust in enumerate(trusts)
    ]


@pytest.mark.parametrize("weighting", ["union", "records"])
def test_trust_is_a_factor_of_the_weight(weighting: Any) -> None:
    method = FedDM(weighting=weighting)
    full, half = method.pool(distilled(1, 1)), method.pool(distilled(1, 0.5))
    ratio = half.weights / full.weights
    assert torch.allclose(ratio[4:] / ratio[:4], torch.tensor(0.5))
    assert float(half.weights.mean()) == pytest.approx(1.0)


def test_feddualmatch_listens_to_trust() -> None:
    method = FedDualMatch(
        images_per_class=2,
        gradient_rounds=1,
        gradient_steps=1,
        server_iterations=5,
        server_batch=256,
        server_augment="none",
        server_balanced=False,
    )
    setup = toy_experiment(method)
    ctx = ServerContext(setup.task, 1, Rng(0))
    state = method.init(ctx)
    full, half, none = (
        method.server(ctx, state, distilled(1, trust)) for trust in (1.0, 0.5, 1e-6)
    )
    assert not torch.equal(as_vector(full.params), as_vector(half.params))
    alone = replace(method, gradient_matching=False)
    faint = alone.server(ctx, state, distilled(1, 1e-6))
    only = alone.server(ctx, state, distilled(1))
    assert torch.allclose(as_vector(faint.params), as_vector(only.params), atol=1e-5)
    assert none.radius < full.radius
