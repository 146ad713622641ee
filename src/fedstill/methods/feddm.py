"""FedDM: Xiong et al., "FedDM: Iterative Distribution Matching for Communication-Efficient
Federated Learning", CVPR 2023.

    1   server: w <- init
    2   for each round:
    3       send w to the sampled clients
    4       client k: S_k <- images_per_class images of every class it holds, random records of
                  it, records that cover it, or noise (warm_start: those of its last round)
    5       T times:
    6           w' <- w + a random step of length at most rho
    7           for every class: mean features h and logits z at w' of a real batch and of S_k
    8           S_k <- S_k - eta_c * pixel gradient of sum_class |dh|^2 + |dz|^2     (eq. 9),
                      steps_per_draw times (the paper: once)
    9       client k: send S_k
    10      server: S <- union of all S_k  (memory: and of those of earlier rounds)
    11      server: w <- SGD on the loss over S from w, kept within rho of w

The paper's values: T = 1000, rho = 5, 10 images per class (5 for 100 classes), pixel learning
rate 1, real batches of 256, server: 500 epochs, learning rate 0.01, batch 256; 20 rounds. The
defaults below are for a small built-in data set and a laptop, chosen by measurement
(docs/measurements.md). Its eq. 10 weights clients by their records and its experiments do not:
``weighting`` offers both.

With privacy on: line 4 is noise, and line 7's real side is one noisy release (``target``): the
class sums of the records' clipped features, which serve ``release_steps`` steps of line 8, or of
their clipped pixel gradients (eq. 17 to 21), which serve one. The paper clips the gradient of the
batch instead, whose sensitivity is not what its proof uses (docs/privacy.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

from msgspec import Meta

from fedstill.methods.shared.distribution_matching import DistributionMatching, MatchingInitial
from fedstill.methods.shared.messages import LastSet, Weights
from fedstill.methods.shared.surrogate import Distilled, SurrogateTraining
from fedstill.private import PrivateForm
from fedstill.steps.classes import labels_for
from fedstill.steps.distil import PixelSteps
from fedstill.steps.matching import Matching
from fedstill.types import ClientContext, Task
from fedstill.wire import Schema

_FULL_STEPS = 10  # images per class, from which on ``careful`` changes nothing: the paper's number


@dataclass(frozen=True)
class FedDM(DistributionMatching, SurrogateTraining[LastSet | None]):
    """Clients send images whose features match their records'; the server trains on them."""

    PRIVATE_DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "initial": "noise",
        "warm_start": True,
        # Few releases of all records, each used for many steps.
        "iterations": 12,
        "release_steps": 75,
        # Adam's steps do not depend on the norm of the clipped features.
        "pixel_optimiser": "adam",
        "pixel_learning_rate": 0.1,
        # Measured with this training, not with the one for images that start from records.
        "server_epochs": 40,
        "server_batch": 256,
        "server_schedule": "constant",
        "server_augment": "none",
        "server_balanced": False,
    }
    PRIVATE_TOGETHER: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("pixel_optimiser", "pixel_learning_rate"),
    )

    private_rate: ClassVar[float] = 1.0

    iterations: Annotated[int, Meta(ge=0)] = 20  # T; the paper: 1000
    initial: MatchingInitial = "real"
    warm_start: bool = False
    patience: Annotated[int, Meta(ge=0)] = 0  # iterations without progress before stopping early
    tolerance: Annotated[float, Meta(ge=0, lt=1)] = 0.01  # progress: the loss falls by this share
    # With fewer than ten images per class, steps of SGD are that much smaller after round 1: the
    # fewer images share a mean, the farther each one moves, and at trained weights too far.
    careful: bool = True

    @property
    def pixels(self) -> PixelSteps:
        return replace(super().pixels, patience=self.patience, tolerance=self.tolerance)

    def in_round(self, number: int) -> Self:
        """The same method with this round's pixel learning rate."""
        share = self.images_per_class / _FULL_STEPS
        if not self.careful or self.pixel_optimiser != "sgd" or number == 1 or share >= 1:
            return self
        return replace(self, pixel_learning_rate=share * self.pixel_learning_rate)

    def private_form(self, rate: float) -> PrivateForm:
        return PrivateForm(self.iterations, self.matching_leaks)

    def upload(self, task: Task) -> Schema[Distilled]:
        self.refuse_unless_sent_as_levels(task)
        return super().upload(task)

    def init_client(self, task: Task) -> LastSet | None:
        return LastSet() if self.warm_start else None

    def client(
        self, ctx: ClientContext, message: Weights, state: LastSet | None
    ) -> tuple[Distilled, LastSet | None]:
        plan = [Matching(compiled=self.compile == "on")] * self.iterations
        last = state.images if state else None
        made = self.in_round(ctx.round).match(  # lines 4 to 8
            ctx, message.params, self.radius, self.images_per_class, plan, last
        )
        labels = labels_for(made.held, self.images_per_class)
        reply = self.reply(ctx, made.images, labels, made.loss)  # line 9
        return reply, LastSet(made.images) if self.warm_start else None
