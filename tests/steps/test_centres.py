"""k-means by hand, and the records that it chooses."""

import torch

from fedstill.rng import Rng
from fedstill.steps.centres import central_images, features_of, k_means
from fedstill.steps.classes import ByClass, real_images
from tests.methods.test_feddm import digits


def test_the_centres_of_two_groups_are_their_means() -> None:
    points = torch.tensor([[0.0], [1.0], [2.0], [10.0], [12.0]])
    for seed in range(8):  # from any two points of a line the groups are found
        assert sorted(k_means(points, 2, Rng(seed).torch()).flatten().tolist()) == [1.0, 11.0]


def test_a_centre_without_points_stays() -> None:
    same = torch.ones(4, 2)
    assert torch.equal(k_means(same, 2, Rng(0).torch()), torch.ones(2, 2))


def test_chosen_are_the_records_nearest_to_the_centres_by_the_obvious_loop() -> None:
    ctx = digits(*[0] * 12, *[2] * 9)
    params = ctx.task.model.init(Rng(1).torch())
    by_class = ByClass(ctx.records)
    images = central_images(ctx, by_class, 3, Rng(5).torch(), params, lambda x: -x)
    stream = Rng(5).torch()
    real_images(ctx, by_class, 3, stream)  # its draws come first
    x, y = ctx.records.all()
    for slot, label in enumerate((0, 2)):
        mine = x[y == label]
        mine = mine[torch.randperm(len(mine), generator=stream)]
        points = list(ctx.task.model.features(params, -mine)[-2].flatten(1))
        centres = [points[i] for i in torch.randperm(len(mine), generator=stream)[:3].tolist()]
        for _ in range(15):
            nearest = [min(range(3), key=lambda c: float((p - centres[c]).norm())) for p in points]
            for c in range(3):
                group = [p for p, at in zip(points, nearest, strict=True) if at == c]
                centres[c] = torch.stack(group).mean(0)
        for c in range(3):
            best = min(range(len(mine)), key=lambda i: float((points[i] - centres[c]).norm()))
            assert torch.equal(images[slot, c], mine[best])


def test_features_do_not_depend_on_the_chunks() -> None:
    ctx = digits(*[0] * 40)
    params = ctx.task.model.init(Rng(1).torch())
    x, _ = ctx.records.all()
    whole = ctx.task.model.features(params, x)[-2].flatten(1)
    assert torch.allclose(features_of(ctx.task, params, x), whole, atol=1e-5)
