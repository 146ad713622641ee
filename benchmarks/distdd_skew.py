"""Why DistDD's published accuracy falls with skew: gradients per class, or of all classes together.

The paper's text sends a gradient per class; its algorithm box draws mini-batches from all records
of a client (lines 9 and 15). Both here, on MNIST with 20 clients, half of them per round.

    python benchmarks/distdd_skew.py --data-dir DIR [--seeds 0 1 2] [--alphas 1 0.1]
"""

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import fedstill
from fedstill.methods.distdd import ClassGradients, DistDD, Distillation
from fedstill.methods.shared.messages import Weights
from fedstill.steps.gradient import batch_gradient, tracked
from fedstill.steps.gradient_matching import gradient_matching_pixels
from fedstill.types import ClientContext, Reply, ServerContext


@dataclass(frozen=True)
class Mixed(DistDD):
    """DistDD by its algorithm box: one gradient per client, of a mini-batch of all classes."""

    def client(
        self, ctx: ClientContext, message: Weights, state: None
    ) -> tuple[ClassGradients, None]:
        order = torch.randperm(len(ctx.records), generator=ctx.rng.at("batches").torch())
        x, y = ctx.records.take(order[: self.real_batch * ctx.task.classes])
        gradient, _ = batch_gradient(ctx.task, tracked(message.params), x, y)
        named = {k: g[None] for k, g in zip(message.params, gradient, strict=True)}
        return ClassGradients(torch.zeros(1, dtype=torch.int64), named), None

    def server(
        self, ctx: ServerContext, state: Distillation, replies: Sequence[Reply[ClassGradients]]
    ) -> Distillation:
        target = list(self.targets(replies)[0].values())
        images = state.images.flatten(0, 1)
        labels = torch.arange(len(state.images)).repeat_interleave(self.images_per_class)
        velocity = torch.zeros_like(images)
        # The gradient by one image of a mean over all classes is a tenth of that over its class.
        rate, first = self.pixel_learning_rate * ctx.task.classes, 0.0
        for step in range(self.steps_s):
            gradient, distance = gradient_matching_pixels(
                ctx.task, state.params, images, labels, target, self.matching.distance
            )
            first = float(distance) if step == 0 else first
            velocity = self.pixel_momentum * velocity + gradient
            images = images - rate * velocity
        whole = images.unflatten(0, state.images.shape[:2])
        last = ctx.round == ctx.task.rounds
        due = last or ctx.round % self.fresh_every == 0
        return Distillation(self.next_theta(ctx, state.params, whole, last), whole, first, 1, due)


SETTINGS = {
    "distance": "cosine",
    "real_batch": 16,
    "restart_every": 10,
    "steps_theta": 30,
    "pixel_learning_rate": 1.0,
    "fresh_every": 30,
    "fresh_networks": 3,
    "fresh_epochs": 300,
    "fresh_augment": "dsa",
}


def accuracy(method: DistDD, options: argparse.Namespace, alpha: str, seed: int) -> float:
    """In percent, of new networks trained on the set after the last round."""
    with tempfile.TemporaryDirectory() as folder:
        result = fedstill.run(
            method,
            data="mnist",
            data_dir=options.data_dir,
            clients=20,
            participation=0.5,
            partition=f"dirichlet:{alpha}",
            rounds=options.rounds,
            model="convnet-small",
            seed=seed,
            workers=1,
            out=Path(folder) / "run",
            progress=False,
            set={"eval_every": options.rounds},
        )
    return 100 * (result.summary.accuracy or 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data-dir")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--alphas", nargs="+", default=["1", "0.1"])
    options = parser.parse_args()
    print("| gradients | Dirichlet | accuracy | by seed |\n|---|---|---|---|")
    for name, kind in (("per class", DistDD), ("of all classes", Mixed)):
        for alpha in options.alphas:
            method = kind(**SETTINGS)  # type: ignore[arg-type]
            found = [accuracy(method, options, alpha, seed) for seed in options.seeds]
            spread = statistics.stdev(found) if len(found) > 1 else 0.0
            each = ", ".join(f"{value:.1f}" for value in found)
            mean = statistics.fmean(found)
            print(f"| {name} | {alpha} | {mean:.1f} ± {spread:.1f} | {each} |", flush=True)


if __name__ == "__main__":
    main()
