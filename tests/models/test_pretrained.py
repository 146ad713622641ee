"""A pretrained network keeps what it knows, unless new weights are requested."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedstill
from fedstill.data import DataSettings, load
from fedstill.errors import RequestError
from tests.models.resnets import resnet


class Notes(fedstill.Observer):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def pretrained() -> tuple[nn.Module, float]:
    """A network trained on the digits, and its test accuracy."""
    data = load(DataSettings("digits"))
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    x, y = data.scaling(data.train.inputs), data.train.labels.long()
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(100):
        sgd.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        sgd.step()
    right = module(data.scaling(data.test.inputs)).argmax(1) == data.test.labels
    return module, float(right.double().mean())


# One step so small that no prediction changes: what is measured is where training started.
STANDING: dict[str, Any] = {
    "rounds": 1,
    "clients": 2,
    "workers": 1,
    "set": {"method.learning_rate": 1e-9, "method.local_steps": 1},
}


def test_a_pretrained_network_starts_where_it_was(tmp_path: Path) -> None:
    module, accuracy = pretrained()
    assert accuracy > 0.85
    seen = Notes()
    result = fedstill.run("fedavg", model=module, observer=seen, out=tmp_path / "a", **STANDING)
    assert result.summary.accuracy == pytest.approx(accuracy, abs=1e-9)
    said = [n for n in seen.notes if "training starts from the weights that the network has" in n]
    assert len(said) == 1
    assert "model.weights = 'new'" in said[0]


def test_new_weights_by_choice(tmp_path: Path) -> None:
    module, _ = pretrained()
    seen = Notes()
    options = {**STANDING, "set": {**STANDING["set"], "model.weights": "new"}}
    result = fedstill.run("fedavg", model=module, observer=seen, out=tmp_path / "a", **options)
    assert result.summary.accuracy is not None
    assert result.summary.accuracy < 0.5
    assert not seen.notes
    given = fedstill.Model.from_module(module, weights="new")
    again = fedstill.run("fedavg", model=given, out=tmp_path / "b", **STANDING)
    assert again.summary.accuracy == result.summary.accuracy


def test_a_resumed_run_does_not_speak_of_its_start(tmp_path: Path) -> None:
    module, _ = pretrained()
    fedstill.run("fedavg", model=module, out=tmp_path / "a", **STANDING)
    seen = Notes()
    fedstill.run(model=module, observer=seen, out=tmp_path / "a", resume=True)
    assert not seen.notes


def takes_norm(shape: tuple[int, ...], classes: int, norm: str = "none") -> nn.Module:
    assert norm == "mine"
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


def test_the_same_words_for_a_function_and_its_own_parameters_win(tmp_path: Path) -> None:
    here = "tests.models.test_pretrained:takes_norm"
    options = {**STANDING, "set": {"model.norm": "mine", "model.weights": "new"}}
    assert (
        fedstill.run("fedavg", model=here, out=tmp_path / "a", **options).summary.rounds_done == 1
    )
    with pytest.raises(
        RequestError, match=r"model\.wieghts: no such setting; did you mean 'weights'"
    ):
        fedstill.run("fedavg", model=resnet((1, 8, 8), 10), set={"model.wieghts": "new"})
    model = fedstill.Model.from_module(pretrained()[0])
    with pytest.raises(RequestError, match=r"model\.norm: a Model object has its settings"):
        fedstill.run("fedavg", model=model, set={"model.norm": "group"})
