"""The update rules against PyTorch's own."""

import pytest
import torch

from fedstill.rng import Rng
from fedstill.steps.training import Descent, Optimiser, Training


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_steps_are_those_of_torch(optimiser: Optimiser, weight_decay: float) -> None:
    generator = Rng(3).torch()
    start = {"a": torch.randn(3, 2, generator=generator), "b": torch.randn(4, generator=generator)}
    ours = {k: v.clone().requires_grad_(True) for k, v in start.items()}
    theirs = [v.clone().requires_grad_(True) for v in start.values()]
    reference: torch.optim.Optimizer = (
        torch.optim.Adam(theirs, lr=0.1, weight_decay=weight_decay)
        if optimiser == "adam"
        else torch.optim.SGD(theirs, lr=0.1, momentum=0.9, weight_decay=weight_decay)
    )
    descent = Descent(ours, Training(0.1, momentum=0.9, optimiser=optimiser), weight_decay)
    for _ in range(5):
        gradient = [torch.randn(v.shape, generator=generator) for v in theirs]
        for leaf, g in zip(theirs, gradient, strict=True):
            leaf.grad = g.clone()
        reference.step()
        descent.step(gradient, 0.1)
    for weight, leaf in zip(ours.values(), theirs, strict=True):
        assert torch.allclose(weight, leaf, atol=1e-6)
