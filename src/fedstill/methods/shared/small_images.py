"""Sets whose images are sent smaller than the network sees them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import Meta
from torch import Tensor

from fedstill.methods.shared.messages import set_specs
from fedstill.methods.shared.surrogate import Distilled
from fedstill.records import SyntheticSet
from fedstill.steps.resize import enlarged, shrunk, small_shape
from fedstill.types import Reply, Task
from fedstill.wire import TensorSpec


@dataclass(frozen=True, kw_only=True)
class SmallImages:
    """Images travel at ``1 / shrink`` of their sides; both ends enlarge them before any use.

    More images for the same bytes, each with less detail (docs/measurements.md).
    """

    shrink: Annotated[int, Meta(ge=1)] = 1  # 2: a quarter of the pixels

    def image_specs(self, task: Task, images_per_class: int) -> dict[str, TensorSpec]:
        """The tensors of a set on its way up."""
        small = replace(task, shape=small_shape(task.shape, self.shrink))
        return set_specs(small, images_per_class, "synthetic")

    def seen(self, images: Tensor) -> Tensor:
        """Records as the network will see them, but for the codec."""
        return enlarged(shrunk(images, self.shrink), self.shrink)

    def arrived(self, replies: Sequence[Reply[Distilled]]) -> Sequence[Reply[Distilled]]:
        """The replies with images as the network sees them."""
        if self.shrink == 1:
            return replies
        return [replace(reply, message=self._enlarged(reply.message)) for reply in replies]

    def _enlarged(self, message: Distilled) -> Distilled:
        images = enlarged(message.synthetic.images, self.shrink)
        return replace(message, synthetic=SyntheticSet(images, message.synthetic.labels))
