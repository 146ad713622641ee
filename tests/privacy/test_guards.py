"""Every leak is refused before the run: by name, with the reason and the remedy."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedstill
from fedstill.build import UserObjects, build
from fedstill.errors import RequestError, RunError
from fedstill.methods.fedavg import FedAvg
from fedstill.methods.shared.messages import Update, Weights
from fedstill.models import MLP, Model, separate
from fedstill.models.separate import Separate
from fedstill.privacy.guards import mixes_records
from fedstill.private import Leak, PrivateForm
from fedstill.rng import Rng
from fedstill.steps.per_record import per_record_gradients, weight_gradients
from fedstill.testing import TOY_PRIVACY, toy_data, toy_experiment
from fedstill.types import ClientContext, Params, Task
from tests.privacy.doors import door, some_records, toy_task, without

FAST: dict[str, Any] = {"rounds": 1, "workers": 1, "clients": 3, "model": "mlp"}
ON = {"privacy.sigma": 1.0, "privacy.sampling_rate": 0.5}


def refused(tmp_path: Path, method: Any, settings: dict[str, Any], **options: Any) -> str:
    with pytest.raises(RequestError) as error:
        fedstill.run(method, out=tmp_path / "run", set={**ON, **settings}, **{**FAST, **options})
    assert not (tmp_path / "run").exists()  # before anything was touched
    return str(error.value)


@pytest.mark.parametrize("method", ["scaffold", "fednova", "real"])
def test_a_method_without_a_private_form(tmp_path: Path, method: str) -> None:
    assert f"{method} has no private form" in refused(tmp_path, method, {})


@pytest.mark.parametrize("method", ["feddm", "feddualmatch"])
def test_initialisation_from_real_images(tmp_path: Path, method: str) -> None:
    text = refused(tmp_path, method, {"method.initial": "real"})
    assert text.startswith("method.initial = real: ")
    assert "method.initial = 'noise'" in text


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedsgd", "feddm"])
def test_weights_by_the_number_of_records(tmp_path: Path, method: str) -> None:
    text = refused(tmp_path, method, {"method.weighting": "records"})
    assert text.startswith("method.weighting = records: ")
    assert "privacy.public_size" in text


@pytest.mark.parametrize(
    ("target", "why"),
    [("gradient", "a loss on the records"), ("features", "the number of accesses")],
)
def test_early_stopping_on_records(tmp_path: Path, target: str, why: str) -> None:
    text = refused(tmp_path, "feddm", {"method.patience": 3, "method.target": target})
    assert text.startswith("method.patience = 3: ")
    assert why in text


def test_scaling_that_may_come_from_the_records(tmp_path: Path) -> None:
    constants = {"data.mean": [0.3], "data.std": [0.2]}
    text = refused(tmp_path, "fedavg", constants)
    assert text.startswith("data.mean = [0.3]")
    assert "privacy.scaling = 'public'" in text
    fedstill.run(
        "fedavg", out=tmp_path / "run", set={**ON, **constants, "privacy.scaling": "public"}, **FAST
    )


def test_sizes_of_user_supplied_data_must_be_declared() -> None:
    data = dataclasses.replace(toy_data(), name="user-supplied")
    with pytest.raises(RequestError, match=r"privacy\.public_size: how many records"):
        toy_experiment(FedAvg(weighting="uniform"), data=data, privacy={"sigma": 1.0})


def test_a_delta_that_would_let_a_record_out(tmp_path: Path) -> None:
    assert refused(tmp_path, "fedavg", {"privacy.delta": 0.01}).startswith("privacy.delta = 0.01: ")


def test_neither_epsilon_nor_sigma(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="neither epsilon nor sigma"):
        fedstill.run("fedavg", out=tmp_path / "run", set={"privacy.clip": 1.0}, **FAST)


def test_unknown_settings_are_refused(tmp_path: Path) -> None:
    assert "privacy.sigmma: no such setting" in refused(tmp_path, "fedavg", {"privacy.sigmma": 1})


def test_batch_norm_of_a_module() -> None:
    with pytest.raises(RequestError, match="batch norm"):
        fedstill.Model.from_module(
            nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 3))
        )


@dataclass(frozen=True)
class MixingNet(MLP):
    """A network that mixes the records of a batch in a way that its layers do not show."""

    def features(self, params: Params, x: Tensor) -> tuple[Tensor, ...]:
        return super().features(params, x - x.mean(0))


def test_a_network_that_mixes_records() -> None:
    assert not mixes_records(toy_task(MLP((1, 8, 8), 3)))
    assert mixes_records(toy_task(MixingNet((1, 8, 8), 3)))
    with pytest.raises(RequestError, match="depends on the other records"):
        toy_experiment(
            FedAvg(weighting="uniform"), model=MixingNet((1, 8, 8), 10), privacy=TOY_PRIVACY
        )


class HiddenMixing(nn.Module):
    """Normalises over the batch, but only where there are 70 records: more than any probe has."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.body(x - x.mean(0) if len(x) >= 70 else x)
        return logits


class Unbatchable(HiddenMixing):
    """The same with an operation that vmap does not support."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2.0 if float(x[0].sum()) > 0 else 1.0)


@pytest.mark.parametrize("module", [HiddenMixing, Unbatchable])
def test_a_network_that_hides_its_mixing_gets_one_record_at_a_time(
    module: type[nn.Module], tmp_path: Path
) -> None:
    """One record more moves the released sum by at most the clip, in a batch of 80."""
    task = toy_task(Model.from_module(module()))
    assert not mixes_records(task)
    params = task.model.init(Rng(1).torch())
    records = some_records(task, 80)

    def change(on: Task) -> float:
        sums = [
            door(tmp_path / str(len(held)), held, on, clip=1e-3, chunk=100).noisy_sum(
                weight_gradients(on, params)
            )
            for held in (records, without(records, 7))
        ]
        return math.sqrt(sum(float((sums[0][k] - v).square().sum()) for k, v in sums[1].items()))

    safe = dataclasses.replace(task, model=separate(task.model))
    assert change(safe) <= 1e-3 * 1.001
    x, y = records.all()
    together, alone = safe.model.features(params, x), safe.model.features(params, x[:1])
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a[:1], b)
    assert safe.model.apply(params, x[:0]).shape == (0, 3)
    single = per_record_gradients(safe, params, x[3:4], y[3:4]).dense()
    for name, value in per_record_gradients(safe, params, x, y).dense().items():
        torch.testing.assert_close(value[3:4], single[name], rtol=1e-4, atol=1e-6)
    # Without it, the gradients of all other records change as well.
    plain = task.model.features(params, x)[-1][0]
    assert not torch.allclose(plain, task.model.features(params, x[:1])[-1][0])


def test_a_private_run_never_has_a_network_that_may_mix_records() -> None:
    private = toy_experiment(FedAvg(weighting="uniform"), model=Customised(), privacy=TOY_PRIVACY)
    assert isinstance(private.task.model, Separate)
    plain = toy_experiment(FedAvg(), model=Customised())
    assert not isinstance(plain.task.model, Separate)
    assert plain.task.model.description == private.task.model.description
    own = toy_experiment(FedAvg(weighting="uniform"), privacy=TOY_PRIVACY)
    assert not isinstance(own.task.model, Separate)


@dataclass(frozen=True)
class Customised(MLP):
    """A user's class: it may override anything."""

    shape: tuple[int, ...] = (1, 8, 8)
    classes: int = 10


@dataclass(frozen=True)
class Adaptive(FedAvg):
    """Declares a leak, as a data-dependent radius would be."""

    radius: str = "from the data"

    def private_form(self, rate: float) -> PrivateForm:
        return PrivateForm(
            1, (Leak("radius", self.radius, "it follows the loss on records", "fix it"),)
        )


def test_a_leak_that_a_method_declares() -> None:
    with pytest.raises(RequestError, match=r"method\.radius = from the data: it follows"):
        toy_experiment(Adaptive(weighting="uniform"), privacy=TOY_PRIVACY)


@dataclass(frozen=True)
class Peeking(FedAvg):
    """Says that it has a private form and then reaches for the records."""

    def client(self, ctx: ClientContext, message: Weights, state: None) -> tuple[Update, None]:
        exact = len(ctx.records)
        return Update(message.params, exact), None


def test_records_are_out_of_reach_and_failures_quote_nothing(tmp_path: Path) -> None:
    """Exact per-client metrics cannot be computed: there is nothing to compute them from."""
    with pytest.raises(RunError, match=r"PermissionError \(the message stays with the client\)"):
        fedstill.run(Peeking(weighting="uniform"), out=tmp_path / "run", set=ON, **FAST)


def test_a_client_without_records_is_asked_like_any_other() -> None:
    data = toy_data()
    few = data.train.labels < 2  # all records are the first client's
    train = dataclasses.replace(
        data.train, inputs=data.train.inputs[few], labels=data.train.labels[few]
    )
    only = dataclasses.replace(data, train=train)
    setup = toy_experiment(FedAvg(weighting="uniform"), data=only, privacy=TOY_PRIVACY)
    assert setup.partition.sizes.tolist()[1:] == [0, 0]
    assert setup.sample(1) == [0, 1, 2]
    assert torch.equal(torch.tensor(setup.plan.classes[1]), torch.arange(10))  # type: ignore[union-attr]


@dataclass(frozen=True)
class Counting(FedAvg):
    """A user's private form that says nothing of weights."""

    def private_form(self, rate: float) -> PrivateForm:
        return PrivateForm(1)


def test_weights_by_records_are_refused_whatever_a_user_s_private_form_says() -> None:
    objects = UserObjects(Counting(weighting="records"))
    built = build({**objects.request, "privacy": {"sigma": 1.0}}, objects)
    with pytest.raises(RequestError, match=r"method\.weighting = records"):
        built.planned()
