"""Batch norms of a user-supplied network: replaced, frozen, or averaged as in plain FedAvg."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedstill
from fedstill.data import Partition
from fedstill.errors import RequestError
from fedstill.models import Model
from fedstill.models.norms import batch_norms
from fedstill.rng import Rng
from tests.models.resnets import ResNet

RESNET = "tests.models.resnets:resnet"
FAST = {"method.iterations": 3, "method.server_epochs": 3, "method.images_per_class": 2}


def network() -> nn.Module:
    torch.manual_seed(0)
    module = ResNet(1, 10)
    images = torch.randn(64, 1, 8, 8)
    for _ in range(3):
        module(images)  # training mode: the statistics are no longer 0 and 1
    for part in batch_norms(module).values():
        nn.init.uniform_(part.weight)
    return module.eval()


def images(number: int = 6) -> Tensor:
    return torch.randn(number, 1, 8, 8, generator=Rng(1).torch())


@pytest.mark.parametrize("norm", ["group", "instance", "frozen"])
def test_converted_norms_do_not_mix_records(norm: Any) -> None:
    module = network()
    before = copy.deepcopy(module.state_dict())
    made = fedstill.convert_norms(module, norm).train()
    assert not batch_norms(made)
    assert torch.allclose(made(images())[:1], made(images()[:1]), atol=1e-5)
    assert len(batch_norms(module)) == 6  # the module itself is left alone
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    scale = dict(made.named_parameters())["bn1.weight"]
    assert torch.equal(scale, dict(module.named_parameters())["bn1.weight"])


def test_frozen_norms_predict_what_the_module_predicts() -> None:
    module = network()
    frozen = fedstill.convert_norms(module, "frozen").train()
    assert torch.equal(frozen(images()), module(images()))


def test_a_network_that_is_one_norm_and_vectors_can_be_converted() -> None:
    assert isinstance(fedstill.convert_norms(nn.BatchNorm2d(8)), nn.GroupNorm)
    vector = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, affine=False), nn.Linear(8, 2))
    for norm in ("group", "instance", "frozen"):
        made = fedstill.convert_norms(vector, norm)
        x = torch.randn(3, 4, generator=Rng(1).torch())
        assert len(made(x).unique(dim=0)) == 3
    with pytest.raises(RequestError, match="no norm 'groop'; did you mean 'group'"):
        fedstill.convert_norms(vector, "groop")  # type: ignore[arg-type]


def test_a_batch_norm_is_refused_with_the_remedies(tmp_path: Path) -> None:
    with pytest.raises(
        RequestError, match=r"'bn1' is a batch norm.*model\.norm = 'group'.*convert_n"
    ):
        fedstill.run("feddm", model=network(), out=tmp_path / "a")
    with pytest.raises(
        RequestError, match=r"model\.norm: expected one of 'group',.*'batch' \(it is 'layer'\)"
    ):
        fedstill.run("feddm", model=network(), set={"model.norm": "layer"}, out=tmp_path / "b")


@pytest.mark.parametrize("norm", ["group", "instance", "frozen"])
def test_an_unmodified_resnet_runs_by_choice(norm: str, tmp_path: Path) -> None:
    options = {
        "rounds": 1,
        "clients": 2,
        "out": tmp_path / "run",
        "set": {**FAST, "model.norm": norm},
    }
    result = fedstill.run("feddm", model=RESNET, **options)  # type: ignore[arg-type]
    assert result.summary.rounds_done == 1
    assert result.summary.status == "done"


def test_a_resnet_with_group_norm_trains_privately(tmp_path: Path) -> None:
    result = fedstill.run(
        "fedavg",
        model=network(),
        epsilon=3,
        rounds=1,
        clients=2,
        out=tmp_path / "run",
        set={"model.norm": "group", "method.local_steps": 1, "privacy.classes": "all"},
    )
    assert result.summary.epsilon is not None


def test_batch_norm_is_for_methods_that_average_weights_without_privacy(tmp_path: Path) -> None:
    batch = {"model.norm": "batch"}
    with pytest.raises(RequestError, match="feddm does not average the clients' weights"):
        fedstill.run("feddm", model=network(), set=batch, out=tmp_path / "a")
    with pytest.raises(RequestError, match="no privacy, because it mixes records"):
        fedstill.run("fedavg", model=network(), set=batch, epsilon=3, out=tmp_path / "b")
    constant = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, momentum=None), nn.Linear(64, 10))
    with pytest.raises(RequestError, match="'1' needs running statistics and a momentum"):
        fedstill.run("fedavg", model=constant, set=batch, out=tmp_path / "c")


def test_batch_norm_is_plain_fedavg(tmp_path: Path) -> None:
    """Each client trains a copy of the module with torch.optim; the server averages everything."""
    module, generator = network(), Rng(2).torch()
    x, y = torch.rand(30, 1, 8, 8, generator=generator), torch.arange(30) % 10
    data = fedstill.arrays(x.numpy(), y.numpy(), x.numpy(), y.numpy())
    result = fedstill.run(
        "fedprox",
        model=module,
        data=data,
        rounds=1,
        clients=2,
        partition="iid",
        set={
            "model.norm": "batch",
            "method.batch_size": 100,
            "method.weight_decay": 0.1,
            "method.mu": 0.5,
            "method.local_epochs": 3,
            "method.learning_rate": 0.1,
        },
        out=tmp_path / "run",
    )
    owner = Partition.load(tmp_path / "run" / "partition.safetensors").owner
    inputs = data.scaling(data.train.inputs)
    states, sizes = [], []
    for client in (0, 1):
        local, start = copy.deepcopy(module).train(), dict(module.named_parameters())
        sgd = torch.optim.SGD(local.parameters(), lr=0.1, weight_decay=0.1)
        rows = owner == client
        for _ in range(3):
            near = sum(((p - start[k].detach()) ** 2).sum() for k, p in local.named_parameters())
            loss = nn.functional.cross_entropy(local(inputs[rows]), y[rows]) + 0.25 * near
            sgd.zero_grad()
            loss.backward()
            sgd.step()
        states.append(local.state_dict())
        sizes.append(int(rows.sum()))
    for name, value in result.params.items():
        expected = sum(s[name] * n for s, n in zip(states, sizes, strict=True)) / sum(sizes)
        assert torch.allclose(value, expected, atol=1e-4), name
    assert not torch.equal(
        result.params["bn1.running_mean"], module.state_dict()["bn1.running_mean"]
    )


def test_a_batch_of_one_record_uses_the_running_statistics() -> None:
    module = network()
    model = Model.from_module(module, norm="batch")
    params = model.init(Rng(0).torch())
    before = {k: v.clone() for k, v in params.items()}
    logits = model.train_apply(params, images(1), Rng(0).torch())
    assert torch.equal(logits, module(images(1)))
    assert all(torch.equal(before[k], v) for k, v in params.items())
    model.train_apply(params, images(2), Rng(0).torch())
    changed = {k for k, v in params.items() if not torch.equal(before[k], v)}
    assert changed == set(model.statistics)
