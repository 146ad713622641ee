"""DynaFed: the switch, the matching step against one large graph, and the limits."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedstill
from fedstill.data import Scaling
from fedstill.errors import RequestError, RunError
from fedstill.methods.dynafed import DynaFed, Dynamics, LearntSet
from fedstill.methods.fedavg import FedAvg
from fedstill.models import MLP
from fedstill.records import SERVER
from fedstill.rng import Rng
from fedstill.runs.sets import load_set
from fedstill.steps.augment import Augment, draw_augmentation
from fedstill.testing import as_vector, toy_run
from fedstill.types import Params, ServerContext, Task, cross_entropy
from fedstill.wire import tree

SMALL = DynaFed(
    trajectory_rounds=2,
    span=1,
    images_per_class=2,
    matching_iterations=2,
    matching_steps=3,
    matching_batch=4,
    tuning_steps=2,
)
TASK = Task(MLP((1, 2, 2), 3, width=4, depth=1), (1, 2, 2), 3, 2, 5, Scaling((), ()))
CONTEXT = ServerContext(TASK, 2, Rng(5))


def trajectory(points: int = 3) -> tuple[Params, ...]:
    """Weights on the way to others, as a falling loss would move them."""
    first, last = (TASK.model.init(Rng(seed).torch()) for seed in (0, 1))
    return tuple(
        {k: torch.lerp(v, last[k], i / points) for k, v in first.items()} for i in range(points)
    )


def test_until_the_switch_it_is_fedavg_that_remembers(tmp_path: Path) -> None:
    method = replace(SMALL, trajectory_rounds=3, span=2)
    early = toy_run(method, tmp_path / "early", rounds=2)
    plain = toy_run(FedAvg(), tmp_path / "plain", rounds=2)
    assert torch.equal(as_vector(early.state.params), as_vector(plain.state.params))
    assert len(early.state.trajectory) == 3
    assert torch.equal(as_vector(early.state.trajectory[2]), as_vector(early.state.params))
    assert early.history[-1].details == {}
    assert early.history[-1].up_bytes == plain.history[-1].up_bytes
    later = toy_run(method, tmp_path / "later", rounds=4)
    assert later.state.trajectory == ()
    assert later.state.learnt.labels.shape == (20, 10)
    assert torch.allclose(later.state.learnt.labels.sum(1), torch.ones(20))
    assert later.history[2].details == later.history[3].details
    assert later.history[3].details["matching_distance"] > 0
    stored = load_set(tmp_path / "later" / "synthetic" / "round-0003.safetensors")
    assert torch.equal(stored.of(SERVER).images, later.state.learnt.images)
    assert len(list((tmp_path / "later" / "synthetic").iterdir())) == 1
    # No extra upload, and none down.
    assert later.history[3].up_bytes == plain.history[1].up_bytes
    assert later.history[3].down_bytes == plain.history[1].down_bytes


def test_without_tuning_it_is_fedavg_to_the_bit(tmp_path: Path) -> None:
    tuned = toy_run(replace(SMALL, tuning_steps=0), tmp_path / "tuned", rounds=4)
    plain = toy_run(FedAvg(), tmp_path / "plain", rounds=4)
    assert tuned.state.learnt is not None
    assert torch.equal(as_vector(tuned.state.params), as_vector(plain.state.params))


def obvious_gradients(
    first: Params,
    target: Params,
    images: Tensor,
    start: Tensor,
    log_rate: Tensor,
    rows: Tensor,
    changes: Sequence[Callable[[Tensor], Tensor]],
) -> tuple[Tensor, Tensor, Tensor]:
    """By one graph through all steps, transformations and the softmax, the batches picked row by
    row."""
    leaves = [t.clone().requires_grad_(True) for t in (images, start, log_rate)]
    x, logits, log = leaves
    weights = {k: v.clone().requires_grad_(True) for k, v in first.items()}
    for batch, change in zip(rows, changes, strict=True):
        soft = logits.softmax(-1)[batch]
        loss = cross_entropy(TASK.model.apply(weights, change(x[batch])), soft).mean()
        gradient = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        weights = {
            k: w - log.exp() * g for (k, w), g in zip(weights.items(), gradient, strict=True)
        }
    distance = sum((weights[k] - target[k]).square().sum() for k in target)
    scale = sum((first[k] - target[k]).square().sum() for k in target)
    assert isinstance(distance, Tensor)
    by_images, by_logits, by_log = torch.autograd.grad(distance / scale, leaves)
    return by_images, by_logits, by_log


@pytest.mark.parametrize("augment", ["none", "dsa"])
def test_one_matching_iteration_is_the_obvious_one(augment: Augment) -> None:
    """Adam's first step is its learning rate against the sign of each gradient."""
    method = replace(SMALL, matching_iterations=1, rate_learning_rate=0.2, augment=augment)
    path = trajectory()
    images, logits = method.start(CONTEXT)
    stream = CONTEXT.rng.at("matching").torch()
    i = int(torch.randint(2, (), generator=stream))
    rows = method.rows(6, 3, stream)
    changes = [draw_augmentation(augment, stream, flip=False) for _ in range(3)]
    log_rate = torch.tensor(method.first_rate).log()
    gradients = obvious_gradients(path[i], path[i + 1], images, logits, log_rate, rows, changes)
    learnt = method.learn(CONTEXT, path)
    sure = gradients[0].abs() > 1e-6  # Adam's epsilon shrinks the step of the smallest ones
    assert sure.float().mean() > (0.9 if augment == "none" else 0.5)  # a cutout hides pixels
    moved = images - 0.1 * gradients[0].sign()
    assert torch.allclose(learnt.images[sure], moved[sure], atol=2e-3)
    sure = gradients[1].abs().min(1).values > 1e-6
    soft = (logits - 0.1 * gradients[1].sign()).softmax(-1)
    assert torch.allclose(learnt.labels[sure], soft[sure], atol=2e-3)
    expected = float((log_rate - 0.2 * gradients[2].sign()).exp())
    assert learnt.learning_rate == pytest.approx(expected, rel=1e-3)


def test_an_averaged_target_is_a_mean_of_models_after_the_first() -> None:
    path = trajectory(5)
    plain = replace(SMALL, trajectory_rounds=4, span=3)
    averaged = replace(plain, averaged_targets=True)
    numbers = set()
    for seed in range(20):
        first, target = plain.ends(path, Rng(seed).torch())
        stream = Rng(seed).torch()
        i = int(torch.randint(2, (), generator=stream))
        assert first is path[i]
        assert target is path[i + 3]
        first, target = averaged.ends(path, Rng(seed).torch())
        number = int(torch.randint(2, 4, (), generator=stream))
        drawn = [i + 1 + int(j) for j in torch.randint(3, (number,), generator=stream)]
        assert first is path[i]
        expected = torch.stack([as_vector(path[j]) for j in drawn]).mean(0)
        assert torch.allclose(as_vector(target), expected, atol=1e-6)
        numbers.add(number)
    assert numbers == {2, 3}


def test_averaged_targets_need_a_span_to_average_over() -> None:
    with pytest.raises(RequestError, match=r"method.span must be at least 2"):
        replace(SMALL, averaged_targets=True)


def test_augmenting_what_is_no_image_is_refused() -> None:
    flat = Task(MLP((4,), 3, width=4, depth=1), (4,), 3, 2, 5, Scaling((), ()))
    SMALL.upload(flat)
    with pytest.raises(RequestError, match=r"method.augment: only images"):
        replace(SMALL, augment="dsa").upload(flat)


def test_labels_start_at_their_class_or_at_equal_probabilities() -> None:
    images, logits = SMALL.start(CONTEXT)
    assert logits.softmax(-1).max(-1).values.tolist() == pytest.approx([0.9] * 6)
    same, zero = replace(SMALL, initial_labels="uniform").start(CONTEXT)
    assert torch.equal(same, images)
    assert torch.equal(zero.softmax(-1), torch.full((6, 3), 1 / 3))


def test_tuning_by_adam_is_torchs_with_the_rate_that_is_set() -> None:
    images, logits = SMALL.start(CONTEXT)
    learnt = LearntSet(images, logits.softmax(-1), 0.3, 0.0)
    start = trajectory()[0]
    method = replace(
        SMALL, tuning_steps=4, tuning_optimiser="adam", tuning_learning_rate=0.01, matching_batch=99
    )
    weights = {k: v.clone().requires_grad_(True) for k, v in start.items()}
    adam = torch.optim.Adam(list(weights.values()), lr=0.01)
    for _ in range(4):
        adam.zero_grad()
        cross_entropy(TASK.model.apply(weights, images), learnt.labels).mean().backward()
        adam.step()
    tuned = method.tuned(CONTEXT, start, learnt)
    assert torch.allclose(as_vector(tuned), as_vector(weights), atol=1e-5)
    # SGD: the learnt rate, unless one is set.
    by_sgd = replace(method, tuning_optimiser="sgd", tuning_learning_rate=None)
    again = replace(by_sgd, tuning_learning_rate=0.3)
    both = [as_vector(m.tuned(CONTEXT, start, learnt)) for m in (by_sgd, again)]
    assert torch.equal(*both)
    assert not torch.equal(as_vector(tuned), both[0])


def test_learning_brings_the_steps_nearer_to_the_trajectory() -> None:
    method = replace(SMALL, matching_steps=5, matching_batch=100)
    path = trajectory()
    few = method.learn(CONTEXT, path)
    many = replace(method, matching_iterations=60).learn(CONTEXT, path)
    assert many.distance < 0.8 * few.distance
    assert many.distance < 1.0  # nearer to w_{i+L} than w_i was


def test_the_distance_is_the_mean_over_all_stretches() -> None:
    method = replace(SMALL, matching_batch=100, span=2)
    path = trajectory(4)
    still = LearntSet(torch.zeros(2, 1, 2, 2), torch.full((2, 3), 1 / 3), 1e-12, 0.0)
    assert method.measured(CONTEXT, still, path).distance == pytest.approx(1.0, abs=1e-5)


def test_a_trajectory_that_stands_still_stays_finite() -> None:
    first = trajectory()[0]
    learnt = SMALL.learn(CONTEXT, (first, first, first))
    assert torch.isfinite(learnt.images).all()
    assert torch.isfinite(learnt.labels).all()


def test_a_set_that_diverges_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(RunError, match=r"lower method.first_rate"):
        replace(SMALL, first_rate=1e30).learn(CONTEXT, trajectory())


def test_a_span_longer_than_the_trajectory_is_refused(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"method.span": 5, "method.trajectory_rounds": 3}
    with pytest.raises(RequestError, match=r"method.span: 5 rounds do not fit into a trajectory"):
        fedstill.run("dynafed", out=tmp_path / "run", set=settings)


def test_the_state_survives_its_file() -> None:
    learnt = SMALL.learn(CONTEXT, trajectory())
    state = Dynamics(trajectory()[0], (), learnt)
    again = tree.load(tree.dump(state), Dynamics)
    assert tree.dump(again) == tree.dump(state)
    early = Dynamics(trajectory()[0], trajectory())
    assert len(tree.load(tree.dump(early), Dynamics).trajectory) == 3
