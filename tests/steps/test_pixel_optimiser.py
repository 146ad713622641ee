"""The pixel optimisers make the steps of ``torch.optim``, to the bit, and import no compiler."""

import subprocess
import sys

import pytest
import torch

from fedstill.rng import Rng
from fedstill.steps.distil import PixelSteps, pixel_optimiser


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_steps_equal_those_of_torch(name: str, momentum: float) -> None:
    draw = Rng(0).at("pixels").torch()
    ours = torch.randn(7, 1, 8, 8, generator=draw)
    theirs = ours.clone()
    mine = pixel_optimiser(ours, PixelSteps(name, 0.37, momentum, 1))  # type: ignore[arg-type]
    reference: torch.optim.Optimizer = torch.optim.SGD([theirs], lr=0.37, momentum=momentum)
    if name == "adam":
        reference = torch.optim.Adam([theirs], lr=0.37)
    for scale in (1.0, 1e-3, 0.0, 30.0, 1e-8, 2.0, 5.0):
        ours.grad = scale * torch.randn(ours.shape, generator=draw)
        theirs.grad = ours.grad.clone()
        mine.step()
        reference.step()
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("method", ["feddm", "fedavg", "psg", "real"])
def test_a_client_does_not_import_the_compiler(method: str) -> None:
    code = (
        "import sys; from tests.methods.small import SMALL\n"
        "from fedstill.methods import METHODS\n"
        "from fedstill.testing.toys import toy_run\n"
        "import pathlib, tempfile\n"
        f"method = METHODS[{method!r}](**SMALL.get({method!r}, {{}}))\n"
        "toy_run(method, pathlib.Path(tempfile.mkdtemp()), rounds=1)\n"
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
