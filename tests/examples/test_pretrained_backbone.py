"""The example's network: its shape is that of the published weights, and a run can use it."""

from pathlib import Path
from types import ModuleType

import pytest
import torch

import fedstill
from tests.examples.loading import load_example


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load_example("pretrained_backbone")


def test_its_weights_are_those_of_efficientnet_lite0(example: ModuleType) -> None:
    """The published network has 4,652,008 weights, 1,281,000 of them in the last layer."""
    network = example.Backbone()
    assert sum(weight.numel() for weight in network.parameters()) == 4_652_008 - 1_281_000
    assert len(network._blocks) == 16


def test_one_vector_per_record_whatever_the_batch(example: ModuleType) -> None:
    torch.manual_seed(0)
    network = example.Backbone().eval()
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        together, alone = network(images), network(images[1:2])
    assert together.shape == (3, 1280)
    assert torch.allclose(together[1:2], alone, atol=1e-5)


def test_a_run_on_its_features(example: ModuleType, tmp_path: Path) -> None:
    torch.manual_seed(0)
    labels = torch.arange(24) % 2
    bright = (labels * 150)[:, None, None, None] + torch.randint(0, 60, (24, 3, 32, 32))
    result = fedstill.run(
        "analytic",
        data={"train": (bright.to(torch.uint8), labels), "test": (bright.to(torch.uint8), labels)},
        clients=2,
        partition="iid",
        features=example.Backbone(),
        workers=1,
        progress=False,
        out=tmp_path / "run",
    )
    assert result.summary.accuracy == 1.0
