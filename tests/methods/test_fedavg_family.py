"""Hand-computed rounds and limits of the FedAvg family.

Two clients, one feature, one weight: the model is softmax([0, w x]), so every number below can
be checked on paper.
"""

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedstill.config import resolve
from fedstill.data import Dataset, Partition, Records, Scaling, Split
from fedstill.errors import RequestError
from fedstill.methods.central import Central
from fedstill.methods.fedavg import FedAvg
from fedstill.methods.fednova import FedNova, path_length
from fedstill.methods.fedprox import FedProx
from fedstill.methods.fedsgd import FedSGD
from fedstill.methods.scaffold import Control, ControlledUpdate, Scaffold, Variates
from fedstill.methods.shared.messages import Weights
from fedstill.models import Model
from fedstill.rng import Rng
from fedstill.steps.training import decayed
from fedstill.testing import as_vector, toy_run
from fedstill.types import ClientContext, Params, Reply, ServerContext, Task


@dataclass(frozen=True)
class OneWeight(Model):
    def init(self, generator: torch.Generator) -> Params:
        return {"w": torch.tensor(0.0)}

    def features(self, params: Params, x: Tensor) -> tuple[Tensor, ...]:
        logit = params["w"] * x[:, :1]
        return (x, torch.cat([torch.zeros_like(logit), logit], 1))


# Client 0 holds x = 1 (class 1) three times; client 1 holds x = 2 (class 0) once.
X = torch.tensor([[1.0], [1.0], [1.0], [2.0]])
Y = torch.tensor([1, 1, 1, 0])
OWNER = torch.tensor([0, 0, 0, 1], dtype=torch.int32)
AS_IS = Scaling((), ())
DATA = Dataset("tiny", Split(X, Y), Split(X, Y), ("no", "yes"), AS_IS, "0")
TASK = Task(OneWeight(), (1,), 2, 2, 5, AS_IS)
SERVER = ServerContext(TASK, 1, Rng(0))


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def gradient(client: int, w: float) -> float:
    """d/dw of the client's mean loss: -x (1 - s) for class 1, x s for class 0."""
    return -(1 - sigmoid(w)) if client == 0 else 2 * sigmoid(2 * w)


def client_context(client: int) -> ClientContext:
    index = Partition(OWNER, 2).index(client)
    return ClientContext(TASK, 1, client, Rng(0), data=Records(DATA.train, index, AS_IS))


def one_round(
    method: Any, state: Any = None, memories: Any = None
) -> tuple[Any, list[Any], list[Any]]:
    state = method.init(SERVER) if state is None else state
    down = method.broadcast(SERVER, state)
    memories = [method.init_client(TASK)] * 2 if memories is None else memories
    turns = [method.client(client_context(k), down, memories[k]) for k in (0, 1)]
    replies = [Reply(k, up) for k, (up, _) in enumerate(turns)]
    return method.server(SERVER, state, replies), [up for up, _ in turns], [m for _, m in turns]


def local(client: int, w: float, steps: int, rate: float, extra: float = 0.0) -> float:
    for _ in range(steps):
        w -= rate * (gradient(client, w) + extra)
    return w


def test_fedavg_with_adam_by_hand() -> None:
    """Two steps of Kingma and Ba's algorithm 1; the client's state does not outlive the round."""
    method = FedAvg(local_epochs=2, batch_size=10, learning_rate=0.1, optimiser="adam")
    _, ups, _ = one_round(method)
    for client, up in enumerate(ups):
        w = mean = square = 0.0
        for step in (1, 2):
            g = gradient(client, w)
            mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g * g
            first, second = mean / (1 - 0.9**step), square / (1 - 0.999**step)
            w -= 0.1 * first / (math.sqrt(second) + 1e-8)
        assert float(up.update["w"]) == pytest.approx(w, rel=1e-5)


def test_fednova_normalises_the_path_of_sgd_alone() -> None:
    with pytest.raises(RequestError, match=r"method\.optimiser.*'adam'"):
        resolve({"method": {"name": "fednova", "optimiser": "adam"}})


def test_fedavg_round_by_hand() -> None:
    method = FedAvg(local_epochs=2, batch_size=10, learning_rate=0.5)
    state, ups, _ = one_round(method)
    w0, w1 = local(0, 0.0, 2, 0.5), local(1, 0.0, 2, 0.5)
    assert float(ups[0].update["w"]) == pytest.approx(w0)
    assert [up.records for up in ups] == [3, 1]
    assert float(state.params["w"]) == pytest.approx(0.75 * w0 + 0.25 * w1)
    even, _, _ = one_round(replace(method, weighting="uniform"))
    assert float(even.params["w"]) == pytest.approx((w0 + w1) / 2)


def test_fedsgd_steps_decay_over_the_rounds() -> None:
    steady, falling = FedSGD(learning_rate=0.3), FedSGD(learning_rate=0.3, decay="cosine")
    state = steady.init(SERVER)
    ups = [Reply(k, steady.client(client_context(k), state, None)[0]) for k in (0, 1)]
    for number in (1, 3, 5):
        ctx = ServerContext(TASK, number, Rng(0))
        rate = (1 + math.cos(math.pi * (number - 1) / TASK.rounds)) / 2
        expected = float(steady.server(ctx, state, ups).params["w"]) * rate  # w starts at 0
        assert float(falling.server(ctx, state, ups).params["w"]) == pytest.approx(expected)


def test_fedsgd_on_a_batch_of_the_records() -> None:
    inputs = torch.tensor([[1.0], [2.0], [4.0], [8.0], [16.0]])
    records = Records(Split(inputs, torch.ones(5, dtype=torch.long)), torch.arange(5), AS_IS)
    ctx = ClientContext(TASK, 1, 0, Rng(4), data=records)
    down = Weights({"w": torch.tensor(0.0)})
    reply, _ = FedSGD(batch_size=2).client(ctx, down, None)
    chosen = torch.randperm(5, generator=ctx.rng.at("batch").torch())[:2]
    # d/dw of -log sigmoid(w x) at w = 0 is -x / 2.
    assert float(reply.update["w"]) == pytest.approx(float(-inputs[chosen].mean()) / 2)
    assert reply.records == 5  # the client's share does not depend on the batch
    every, _ = FedSGD(batch_size=9).client(ctx, down, None)
    assert torch.allclose(every.update["w"], FedSGD().client(ctx, down, None)[0].update["w"])


def test_fedsgd_round_by_hand() -> None:
    state, ups, _ = one_round(FedSGD(learning_rate=0.3))
    g0, g1 = gradient(0, 0.0), gradient(1, 0.0)
    assert float(ups[1].update["w"]) == pytest.approx(g1)
    assert float(state.params["w"]) == pytest.approx(-0.3 * (0.75 * g0 + 0.25 * g1))


def test_fedprox_round_by_hand() -> None:
    state, _, _ = one_round(FedProx(local_epochs=2, batch_size=10, learning_rate=0.5, mu=0.4))

    def trained(client: int) -> float:
        w = 0.0
        for _ in range(2):
            w -= 0.5 * (gradient(client, w) + 0.4 * (w - 0.0))
        return w

    assert float(state.params["w"]) == pytest.approx(0.75 * trained(0) + 0.25 * trained(1))


def test_fednova_round_by_hand() -> None:
    """Client 0 takes 3 steps of one record, client 1 takes 1: FedAvg would count it thrice."""
    method = FedNova(local_epochs=1, batch_size=1, learning_rate=0.5)
    state, ups, _ = one_round(method)
    w0, w1 = local(0, 0.0, 3, 0.5), local(1, 0.0, 1, 0.5)
    assert [up.path for up in ups] == [3, 1]
    effective = 0.75 * 3 + 0.25 * 1
    assert float(state.params["w"]) == pytest.approx(effective * (0.75 * w0 / 3 + 0.25 * w1 / 1))


def test_a_single_step_is_never_shorter_than_one() -> None:
    """Rounding made it 0.9999999999999889 at momentum 0.99, below what was declared."""
    assert min(path_length(1, i / 1000) for i in range(1000)) == 1.0


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_path_length_is_the_sum_of_the_gradients_weights(steps: int, momentum: float) -> None:
    velocity, path = 0.0, 0.0
    for _ in range(steps):  # a constant gradient of 1 and a learning rate of 1
        velocity = momentum * velocity + 1.0
        path += velocity
    assert path_length(steps, momentum) == pytest.approx(path)


def test_scaffold_two_rounds_by_hand() -> None:
    method = Scaffold(local_epochs=2, batch_size=10, learning_rate=0.5, server_learning_rate=0.8)
    state, _, memories = one_round(method)
    x, c, c_i = 0.0, 0.0, [0.0, 0.0]
    for _ in range(2):
        y = [local(k, x, 2, 0.5, extra=c - c_i[k]) for k in (0, 1)]
        after = [c_i[k] - c + (x - y[k]) / (2 * 0.5) for k in (0, 1)]
        x, c = (
            x + 0.8 * sum(v - x for v in y) / 2,
            c + sum(a - b for a, b in zip(after, c_i, strict=True)) / 2,
        )
        c_i = after
        assert float(state.params["w"]) == pytest.approx(x)
        assert float(state.control["w"]) == pytest.approx(c)
        assert [float(m.control["w"]) for m in memories] == pytest.approx(c_i)
        state, _, memories = one_round(method, state, memories)


def test_scaffold_weights_variates_by_records_too() -> None:
    method = Scaffold(
        local_epochs=1,
        batch_size=1,
        learning_rate=0.5,
        weighting="records",
        control_weighting="records",
    )
    state, _, _ = one_round(method)
    y = [local(0, 0.0, 3, 0.5), local(1, 0.0, 1, 0.5)]
    c_i = [-y[0] / (3 * 0.5), -y[1] / 0.5]
    assert float(state.params["w"]) == pytest.approx(0.75 * y[0] + 0.25 * y[1])
    assert float(state.control["w"]) == pytest.approx(0.75 * c_i[0] + 0.25 * c_i[1])


def test_scaffold_with_part_of_the_clients_moves_c_by_their_part() -> None:
    method = Scaffold(batch_size=10, learning_rate=0.5)
    state = method.init(SERVER)
    up, _ = method.client(client_context(1), state, method.init_client(TASK))
    after = method.server(SERVER, state, [Reply(1, up)])
    assert float(after.control["w"]) == pytest.approx(gradient(1, 0.0) / 2)


def test_scaffold_warns_before_variates_of_few_steps_spread() -> None:
    method = Scaffold(batch_size=1)
    update = {"w": torch.tensor(0.0)}
    replies = [Reply(k, ControlledUpdate(update, n, update)) for k, n in enumerate((4, 41))]
    state = method.init(SERVER)
    with pytest.warns(UserWarning, match=r"4 to 41 local steps.*method\.control_weighting=records"):
        method.server(SERVER, state, replies)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method.server(SERVER, state, replies[:1])
        near = [Reply(k, ControlledUpdate(update, n, update)) for k, n in enumerate((4, 31))]
        method.server(SERVER, state, near)  # a factor of less than eight
        replace(method, local_steps=5).server(SERVER, state, replies)
        replace(method, control_weighting="records").server(SERVER, state, replies)


def test_the_learning_rate_decays_over_the_rounds() -> None:
    """Round 3 of 5 of a cosine from 0.5: half of 1 + cos(2 pi / 5)."""
    ctx = replace(client_context(0), round=3)
    rate = 0.5 * (1 + math.cos(math.pi * 2 / 5)) / 2
    down = Weights({"w": torch.tensor(0.0)})
    for method in (FedAvg, FedProx, FedNova):
        decaying = method(batch_size=10, learning_rate=0.5, decay="cosine")
        up: Any = decaying.client(ctx, down, None)[0]
        assert float(up.update["w"]) == pytest.approx(-rate * gradient(0, 0.0))
    controlled = Scaffold(batch_size=10, learning_rate=0.5, decay="cosine")
    state = controlled.init(SERVER)
    answer, memory = controlled.client(ctx, state, controlled.init_client(TASK))
    assert float(answer.update["w"]) == pytest.approx(-rate * gradient(0, 0.0))
    # The control variate is the mean gradient, whatever the rate.
    assert float(memory.control["w"]) == pytest.approx(gradient(0, 0.0))
    assert decayed(0.5, "cosine", 1, 5) == decayed(0.5, "none", 4, 5) == 0.5
    assert 0 < decayed(0.5, "cosine", 5, 5) < 0.05  # the last round still learns
    assert decayed(0.5, "cosine", 7, 5) == decayed(0.5, "cosine", 5, 5)
    # The beginning of a run with twice as many rounds.
    beginning = FedAvg(learning_rate=0.5, decay="cosine", decay_rounds=2 * TASK.rounds)
    later = replace(client_context(0), round=3)
    assert beginning.rate_in(later) == decayed(0.5, "cosine", 3, 10)


def test_scaffold_begins_with_zero_variates() -> None:
    method = Scaffold()
    assert method.init(SERVER) == Variates({"w": torch.tensor(0.0)}, {"w": torch.tensor(0.0)})
    assert method.init_client(TASK) == Control({"w": torch.tensor(0.0)})


SETTINGS = {"local_epochs": 2, "batch_size": 8, "learning_rate": 0.1}


def final(method: Any, tmp_path: Any, name: str, **options: Any) -> Tensor:
    run = toy_run(method, tmp_path / name, **options)
    return as_vector(run.built.method.params(run.state))


def test_limits(tmp_path: Any) -> None:
    """Where two methods must agree, they do."""
    average = final(FedAvg(**SETTINGS), tmp_path, "fedavg")  # type: ignore[arg-type]
    proximal = final(FedProx(**SETTINGS, mu=0.0), tmp_path, "fedprox")  # type: ignore[arg-type]
    assert torch.equal(average, proximal), "FedProx with mu 0 is FedAvg"

    # One batch holds everything, so every client takes the same number of steps.
    whole = {**SETTINGS, "batch_size": 1000}
    average = final(FedAvg(**whole), tmp_path, "fedavg2")  # type: ignore[arg-type]
    nova = final(FedNova(**whole), tmp_path, "fednova")  # type: ignore[arg-type]
    assert torch.allclose(average, nova, atol=1e-6), "FedNova with equal steps is FedAvg"

    one_step = {"local_epochs": 1, "batch_size": 1000, "learning_rate": 0.1}
    average = final(FedAvg(**one_step), tmp_path, "fedavg3")  # type: ignore[arg-type]
    gradient_step = final(FedSGD(learning_rate=0.1), tmp_path, "fedsgd")
    assert torch.allclose(average, gradient_step, atol=1e-6), "FedAvg of one full step is FedSGD"

    even = final(FedAvg(**SETTINGS, weighting="uniform"), tmp_path, "fedavg4", rounds=1)  # type: ignore[arg-type]
    controlled = final(Scaffold(**SETTINGS), tmp_path, "scaffold", rounds=1)  # type: ignore[arg-type]
    assert torch.allclose(even, controlled, atol=1e-6), "SCAFFOLD's first round is FedAvg's"


def test_one_client_is_centralised_training(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    together = final(Central(**SETTINGS), tmp_path, "central")  # type: ignore[arg-type]
    monkeypatch.setattr(FedAvg, "pooled", True, raising=False)
    alone = final(FedAvg(**SETTINGS), tmp_path, "fedavg")  # type: ignore[arg-type]
    assert torch.equal(together, alone)
