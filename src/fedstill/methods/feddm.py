"""FedDM: Xiong et al., "FedDM: Iterative Distribution Matching for Communication-Efficient
Federated Learning", CVPR 2023.

    1   server: w <- init
    2   for each round:
    3       send w to the sampled clients
    4       client k: S_k <- images_per_class images of every class it holds, random records of
                  it or noise (warm_start: those of its last round)
    5       T times:
    6           w' <- w + a random step of length at most rho
    7           for every class: mean features h and logits z at w' of a real batch and of S_k
    8           S_k <- S_k - eta_c * pixel gradient of sum_class |dh|^2 + |dz|^2     (eq. 9)
    9       client k: send S_k
    10      server: S <- union of all S_k  (memory: and of those of earlier rounds)
    11      server: w <- SGD on the loss over S from w, kept within rho of w

The paper's values: T = 1000, rho = 5, 10 images per class (5 for 100 classes), pixel learning
rate 1, real batches of 256, server: 500 epochs, learning rate 0.01, batch 256; 20 rounds. The
defaults below are for a small built-in data set and a laptop, chosen by measurement
(docs/methods.md). Its eq. 10 weights clients by their records and its experiments do not:
``weighting`` offers both.

With privacy on: line 4 is noise, and line 7's real side is one noisy release (``target``): the
class sums of the records' clipped features, good for ``release_steps`` steps of line 8, or of
their clipped pixel gradients (eq. 17 to 21), good for one. The paper clips the gradient of the
batch instead, whose sensitivity is not what its proof uses (docs/privacy.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta
from torch import Tensor

from fedstill.methods.shared.messages import Weights
from fedstill.methods.shared.surrogate import Distilled, SurrogateTraining
from fedstill.steps.augment import Augment
from fedstill.steps.classes import ByClass, Initial, check_images, first_images, labels_for
from fedstill.steps.distil import PixelOptimiser, PixelSteps, match_distribution
from fedstill.steps.matching import Matching
from fedstill.steps.released import Release, Target, first_noise, match_released, matching_leaks
from fedstill.types import ClientContext, PrivateForm, Task


@dataclass(frozen=True)
class LastSet:
    """Client state with ``warm_start``: the images of its last round, in slot form."""

    images: Tensor | None = None


@dataclass(frozen=True)
class FedDM(SurrogateTraining):
    """Clients send images whose features match their records'; the server trains on them."""

    PRIVATE_DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "initial": "noise",
        "warm_start": True,
        # Its steps do not depend on how long clipped features are.
        "pixel_optimiser": "adam",
        "pixel_learning_rate": 0.1,
    }

    iterations: Annotated[int, Meta(ge=0)] = 20  # T; the paper: 1000
    initial: Initial = "real"
    real_batch: Annotated[int, Meta(ge=1)] = 256  # records of a class in one iteration
    pixel_optimiser: PixelOptimiser = "sgd"
    pixel_learning_rate: Annotated[float, Meta(gt=0)] = 1.0
    pixel_momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.5  # 0.5 as in the code it follows
    augment: Augment = "none"
    flip: bool = False  # whether DSA may mirror images: never for digits
    warm_start: bool = False
    patience: Annotated[int, Meta(ge=0)] = 0  # iterations without progress before stopping early
    tolerance: Annotated[float, Meta(ge=0, lt=1)] = 0.01  # progress: this share of the loss
    compile: Literal["off", "on"] = "off"
    target: Target = "features"  # of a private run: what is released
    release_steps: Annotated[int, Meta(ge=1)] = 10  # pixel steps on each release of features

    def private_form(self, rate: float) -> PrivateForm:
        leaks = matching_leaks(self.initial, self.augment, self.target, self.patience)
        return PrivateForm(self.iterations, leaks)

    def init_client(self, task: Task) -> LastSet | None:
        return LastSet() if self.warm_start else None

    def client(
        self, ctx: ClientContext, message: Weights, state: LastSet | None
    ) -> tuple[Distilled, LastSet | None]:
        plan = [Matching(compiled=self.compile == "on")] * self.iterations
        pixels = PixelSteps(
            self.pixel_optimiser,
            self.pixel_learning_rate,
            self.pixel_momentum,
            self.real_batch,
            self.augment,
            self.flip,
            self.patience,
            self.tolerance,
        )
        last = state.images if state else None
        where = (message.params, self.radius)
        if ctx.private is not None:
            held = ctx.private.classes
            start = last if last is not None else first_noise(ctx, self.images_per_class)
            release = Release(self.target, self.release_steps)
            images, loss = match_released(ctx, *where, start, plan, pixels, release)
        else:
            check_images(ctx)
            by_class = ByClass(ctx.records)
            held = by_class.held
            start = last if last is not None else self.start(ctx, by_class)
            images, loss = match_distribution(ctx, by_class, *where, start, plan, pixels)  # 5 to 8
        labels = labels_for(held, self.images_per_class)
        return self.reply(ctx, images, labels, loss), LastSet(images) if self.warm_start else None

    def start(self, ctx: ClientContext, by_class: ByClass) -> Tensor:
        """Where the images start from: line 4."""
        return first_images(ctx, by_class, self.images_per_class, self.initial)
