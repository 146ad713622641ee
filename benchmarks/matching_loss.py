"""FedDM with richer statistics than class means, at equal bytes: one round, measured upload.

    python benchmarks/matching_loss.py --data-dir DIR [--data cifar10] [--seeds 0] ROW ...

A row is LOSS/RATE/SHRINK/IMAGES. LOSS is `none` (the records that FedDM starts from, not moved),
`means` (FedDM's own), `layers` (the means of the last four outputs instead of two), `moments`
(means and second moments of each output) or `characteristic` (the empirical characteristic function
at 256 random frequencies, drawn anew with the weights). RATE is the pixels' learning rate; SHRINK
and IMAGES as in `equal_bytes.py`. Images start from records near centres of k-means, take 20 steps
and travel as 2 bits by the context coder. Everything but the loss is `fedstill run feddm`.
"""

import argparse
import math
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

import fedstill
from fedstill.methods.feddm import FedDM
from fedstill.methods.shared.messages import LastSet, Weights
from fedstill.methods.shared.surrogate import Distilled
from fedstill.models.model import Forward, Model
from fedstill.steps.classes import ByClass, labels_for
from fedstill.steps.matching import Matching
from fedstill.types import ClientContext, Params

SKEW = {"cifar10": "dirichlet:0.1"}  # others: 0.01
FREQUENCIES = 256
Loss = Literal["none", "means", "layers", "moments", "characteristic"]
Statistic = Callable[[Tensor], Tensor]  # outputs [N, size] to what is averaged over a class


def moments(output: Tensor) -> Tensor:
    return torch.cat([output, output.square()], 1)


class Characteristic:
    """Real and imaginary parts of exp(i t.x) at random t, so long that t.x has a spread near 1."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.frequencies: dict[int, Tensor] = {}

    def redraw(self) -> None:
        self.frequencies.clear()

    def __call__(self, output: Tensor) -> Tensor:
        size = output.shape[1]
        if size not in self.frequencies:
            # The first outputs after a draw are real ones and set the scale.
            spread = float(output.std(0).norm()) or 1.0
            drawn = torch.randn(size, FREQUENCIES, generator=self.generator)
            self.frequencies[size] = drawn / spread
        angle = output @ self.frequencies[size]
        return torch.cat([angle.cos(), angle.sin()], 1) * math.sqrt(size / FREQUENCIES)


class Lifted:
    """A network whose outputs are replaced by a statistic of them, for matching alone."""

    def __init__(self, model: Model, statistic: Statistic) -> None:
        self.model, self.statistic = model, statistic

    def __getattr__(self, name: str) -> object:
        return getattr(self.model, name)

    def inference_by(self, params: Params, last: int) -> Forward:
        if isinstance(self.statistic, Characteristic):
            self.statistic.redraw()
        return self._lift(self.model.inference_by(params, last))

    def pixel_features_by(self, params: Params, last: int) -> Forward:
        return self._lift(self.model.pixel_features_by(params, last))

    def _lift(self, forward: Forward) -> Forward:
        return lambda x: tuple(self.statistic(out.flatten(1)) for out in forward(x))


@dataclass(frozen=True)
class LossFedDM(FedDM):
    """FedDM with a choice of what is matched."""

    loss: Loss = "means"

    def client(
        self, ctx: ClientContext, message: Weights, state: LastSet | None
    ) -> tuple[Distilled, LastSet | None]:
        statistic: Statistic | None = None
        if self.loss == "moments":
            statistic = moments
        elif self.loss == "characteristic":
            statistic = Characteristic(ctx.rng.at("frequencies").torch())
        seen = ctx
        if statistic is not None:
            lifted = Lifted(ctx.task.model, statistic)
            seen = replace(ctx, task=replace(ctx.task, model=lifted))  # type: ignore[arg-type]
        layers = 4 if self.loss == "layers" else 2
        plan = [Matching(layers)] * (0 if self.loss == "none" else self.iterations)
        # Records are chosen by the network's own features, so the start is the same for all.
        first = self.first(ctx, ByClass(ctx.records), self.images_per_class, message.params)
        made = self.match(seen, message.params, self.radius, self.images_per_class, plan, first)
        labels = labels_for(made.held, self.images_per_class)
        return self.reply(ctx, made.images, labels, made.loss), None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("rows", nargs="+", metavar="LOSS/RATE/SHRINK/IMAGES")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # classes with few records repeat them
    with tempfile.TemporaryDirectory() as folder:
        for seed in options.seeds:
            for text in options.rows:
                loss, rate, shrink, images = text.split("/")
                method = LossFedDM(
                    loss=loss,
                    pixel_learning_rate=float(rate),
                    shrink=int(shrink),
                    images_per_class=int(images),
                    initial="centres",
                    real_batch=32,
                )
                begun = time.process_time()
                result = fedstill.run(
                    method,
                    data=options.data,
                    data_dir=options.data_dir,
                    model="convnet-small",
                    partition=SKEW.get(options.data, "dirichlet:0.01"),
                    rounds=1,
                    seed=seed,
                    workers=1,
                    set={"wire.up": "bits2+context"},
                    out=Path(folder) / text.replace("/", "-") / str(seed),
                    progress=False,
                )
                seconds = time.process_time() - begun
                print(
                    f"{options.data} seed {seed} {text:28} {result.summary.up_bytes / 1e3:8.1f} kB"
                    f" {100 * (result.summary.accuracy or 0):5.1f}  ({seconds:.0f} s)",
                    flush=True,
                )


if __name__ == "__main__":
    main()
