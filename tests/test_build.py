"""The one assembly: what is built, how often, and what its digest depends on."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import fedstill
from fedstill.build import UserObjects, build, network_task
from fedstill.config import resolve_model, resolve_partitioning
from fedstill.errors import RequestError, RunError
from fedstill.methods import METHODS
from fedstill.methods.fedavg import FedAvg
from fedstill.models import MLP, Model
from fedstill.scaling import Scaling

REQUEST: dict[str, Any] = {"method": "fedavg", "model": {"name": "mlp", "width": 8}, "clients": 3}


@dataclass(frozen=True)
class CountedMethod(FedAvg):
    built: ClassVar[int] = 0

    def __post_init__(self) -> None:
        type(self).built += 1


CALLS: list[tuple[int, ...]] = []


def counted_model(shape: tuple[int, ...], classes: int) -> Model:
    CALLS.append(shape)
    return MLP(shape, classes, width=8)


def test_a_method_and_a_model_are_built_once_per_run(tmp_path: Path) -> None:
    CountedMethod.built = 0
    CALLS.clear()
    fedstill.run(
        "tests.test_build:CountedMethod",
        model="tests.test_build:counted_model",
        rounds=2,
        clients=3,
        workers=1,
        out=tmp_path / "run",
    )
    assert CountedMethod.built == 1
    assert CALLS == [(1, 8, 8)]


class Activated(nn.Module):
    """Its text names an object by its address, as a lambda's does."""

    def __init__(self, width: int = 4, activation: Callable[..., Any] = torch.relu) -> None:
        super().__init__()
        self.flat, self.first, self.last = nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 10)
        self.activation = activation

    def extra_repr(self) -> str:
        return f"activation={object()!r}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(self.activation(self.first(self.flat(x))))
        return logits


def test_the_digest_is_of_values_and_not_of_texts_with_addresses() -> None:
    def digest(module: nn.Module) -> str:
        objects = UserObjects(model=Model.from_module(module), model_name="m")
        return build({"method": "fedavg", "clients": 3}, objects).digest

    assert digest(Activated()) == digest(Activated())
    assert digest(Activated()) != digest(Activated(width=5))


def test_the_digest_depends_on_settings_that_decide_and_on_no_others() -> None:
    first = build(REQUEST).digest
    assert build({**REQUEST, "engine": {"workers": 3}}).digest == first
    assert build({**REQUEST, "seed": 1}).digest != first
    assert build({**REQUEST, "model": {"name": "mlp", "width": 9}}).digest != first


def test_a_private_experiment_hands_out_no_records_before_it_is_planned(tmp_path: Path) -> None:
    built = build({**REQUEST, "privacy": {"epsilon": 3.0}})
    with pytest.raises(RunError, match="no plan"):
        _ = built.client_records
    planned = built.planned()
    assert planned.experiment.privacy is not None
    assert planned.experiment.privacy.sigma == planned.plan.sigma if planned.plan else False
    assert planned.with_ledgers(tmp_path).client_records.ledgers == tmp_path
    assert build(REQUEST).planned().plan is None


def test_sections_resolve_alone() -> None:
    assert resolve_model({"name": "mlp"}) == {
        "name": "mlp",
        "width": 200,
        "depth": 2,
        "activation": "relu",
    }
    how = resolve_partitioning({"data": "digit-domains", "seed": 3})
    assert (how.partition, how.seed, how.data.name) == ("natural", 3, "digit-domains")
    with pytest.raises(RequestError, match="partition"):
        resolve_partitioning({"partition": "dirichlet"})
    with pytest.raises(RequestError, match="clientss: no such setting; did you mean 'clients'"):
        resolve_partitioning({"clientss": 3})
    task, table = network_task({"name": "mlp"}, (1, 8, 8), 10, Scaling((), ()))
    assert table["width"] == 200
    assert task.model.size == MLP((1, 8, 8), 10).size
    with pytest.raises(RequestError, match="device: 'nowhere' cannot be used"):
        network_task({"name": "mlp"}, (1, 8, 8), 10, Scaling((), ()), "nowhere")


def test_the_partition_refuses_settings_that_it_does_not_depend_on() -> None:
    for key in ({"method": {"nonsense": 1}}, {"model": "nope"}, {"wire": {"up": "x"}}):
        with pytest.raises(RequestError, match="does not depend on it; leave it out"):
            resolve_partitioning(key)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_answers_what_generic_code_asks(name: str) -> None:
    """No getattr anywhere: what a method may add is declared, with defaults."""
    method = METHODS[name]()
    assert method.replies_needed.number >= 1
    form = method.private_form(0.1)
    assert form is None or form.accesses >= 1
    assert isinstance(method.pooled, bool)
    assert isinstance(method.instead_of_defence, str)


def test_a_class_that_is_no_complete_method_is_refused_with_what_it_lacks() -> None:
    with pytest.raises(RequestError, match=r"derive it from fedstill\.types\.Method"):
        fedstill.run(object())
    with pytest.raises(RequestError, match=r"is incomplete: broadcast\(\) is missing"):
        build({"method": "fedstill.types:Stateless"})


def test_the_metadata_ask_for_the_pytorch_that_is_tested() -> None:
    """Generator layout, `_version` and `native_group_norm` are internals: no older version was
    tried with them, so none is claimed."""
    import tomllib

    root = Path(__file__).parent.parent
    pinned = next(
        line.removeprefix("torch==")
        for line in (root / "constraints.txt").read_text().splitlines()
        if line.startswith("torch==")
    )
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    floor = next(d for d in project["dependencies"] if d.startswith("torch"))
    assert floor == f"torch>={'.'.join(pinned.split('.')[:2])}"
