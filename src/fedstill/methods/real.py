"""REAL: the baseline of Xiong et al. (FedDM, CVPR 2023) that sends records as they are.

    1   FedDM, but its lines 4 to 8 are: S_k <- random records of every class the client holds

The same number of images and bytes, without the matching. It sends records in the clear: it
measures the gain of distillation, and must not be used on private data.

With ``choose = "loss"`` line 1 draws records in proportion to their loss at the server's weights.
That is not neutral: mislabelled and atypical records have the highest losses and are sent first,
so it may gain on clean data and lose on others, and it singles out those who differ from the rest.

With ``choose = "centres"`` line 1 takes the records nearest to the centres of k-means, class by
class, in the features of the server's weights: records that cover the class.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedstill.methods.shared.messages import Weights
from fedstill.methods.shared.small_images import SmallImages
from fedstill.methods.shared.surrogate import Distilled, SurrogateTraining
from fedstill.steps.centres import central_images
from fedstill.steps.classes import SENT_AGAIN, ByClass, check_images, labels_of, real_images
from fedstill.steps.resize import shrunk
from fedstill.steps.scores import losses
from fedstill.types import ClientContext, Params, Task


@dataclass(frozen=True)
class Real(SmallImages, SurrogateTraining[None]):
    """Random real images instead of synthetic ones: FedDM's baseline, and no privacy at all."""

    sends_records: ClassVar[bool] = True

    # "loss": in proportion to the loss, which favours mislabelled and atypical records. "centres":
    # those nearest to the centres of k-means in the network's features.
    choose: Literal["random", "loss", "centres"] = "random"

    @property
    def start_note(self) -> str | None:
        if self.choose != "loss":
            return None
        return "choosing by loss favours mislabelled and atypical records: they are sent first"

    def init_client(self, task: Task) -> None:
        return None

    def client(self, ctx: ClientContext, message: Weights, state: None) -> tuple[Distilled, None]:
        check_images(ctx)
        by_class = ByClass(ctx.records)
        images = shrunk(self.chosen(ctx, by_class, message.params), self.shrink)  # line 1
        return self.reply(ctx, images, labels_of(by_class, self.images_per_class), 0.0), None

    def chosen(self, ctx: ClientContext, by_class: ByClass, params: Params) -> Tensor:
        """Line 1, in slot form."""
        number, generator = self.images_per_class, ctx.rng.at("images").torch()
        if self.choose == "centres":
            return central_images(
                ctx, by_class, number, generator, params, self.seen, repeats=SENT_AGAIN
            )
        chances = losses(ctx.task, params, ctx.records) if self.choose == "loss" else None
        return real_images(ctx, by_class, number, generator, chances, repeats=SENT_AGAIN)
